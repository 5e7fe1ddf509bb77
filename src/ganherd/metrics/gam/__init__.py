"""GAM and GAM-II: generators judged by the discriminators of others."""
