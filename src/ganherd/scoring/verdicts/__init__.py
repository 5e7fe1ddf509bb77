"""Verdicts on a trained herd and on each of its members: evidence from the mixture's own samples, limits, and words."""
