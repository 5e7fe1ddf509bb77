"""Other ways to train many GANs, which the benchmark measures in the same run."""
