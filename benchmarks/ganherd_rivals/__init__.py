"""What `ganherd bench` compares ganherd with: other ways to train many GANs, limits of the machine, a model of larger jobs."""
