"""Mixtures: the trained generators with their weights, their files, and sampling from them."""
