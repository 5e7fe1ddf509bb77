"""Features, which metrics are computed on: networks, features of samples, and the cache of those of real data."""
