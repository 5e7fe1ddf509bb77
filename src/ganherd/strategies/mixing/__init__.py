"""Search for the best weights of mixtures. Features of the samples are computed once, not for every candidate."""
