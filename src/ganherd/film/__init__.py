"""Make a film of a run: how the samples of its members develop, from the sprites (small samples) that the run saved."""
