"""Signs of life of ranks, and who gives none."""
