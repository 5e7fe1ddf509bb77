"""The history of a grid, read from the events of a run, and its pictures."""
