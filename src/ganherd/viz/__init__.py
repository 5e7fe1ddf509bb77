"""Pictures from arrays: grids, points and charts. Knows nothing of runs."""
