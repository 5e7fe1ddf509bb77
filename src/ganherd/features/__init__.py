"""What metrics are computed on: networks that look at samples, their features, and what is cached of real data."""
