"""Compute features, the network outputs that metrics compare: feature networks, extraction, a cache for real data."""
