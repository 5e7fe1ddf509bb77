"""Mixture weights that are searched for on features computed once."""
