"""Objects of the running process, and the names by which recipes find them."""
