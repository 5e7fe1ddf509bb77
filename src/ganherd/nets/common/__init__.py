"""Layers and blocks that several nets share."""
