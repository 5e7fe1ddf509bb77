"""Distances between distributions of one variable: the classes of samples, and the columns of tables."""
