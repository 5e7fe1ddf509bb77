"""Train all members (GANs) of a herd at once: stacked state, random streams, batches, engines and training step."""
