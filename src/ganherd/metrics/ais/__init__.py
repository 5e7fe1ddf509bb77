"""Annealed importance sampling: the log-likelihood of held-out images."""
