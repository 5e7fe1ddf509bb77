"""Films of a run: how the samples of its members grow, from the sprites that it saved."""
