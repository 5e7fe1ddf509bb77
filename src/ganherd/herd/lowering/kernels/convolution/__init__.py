"""Convolutions of all members as implicit matrix products."""
