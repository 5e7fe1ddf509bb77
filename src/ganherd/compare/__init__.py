"""Comparisons: recipes under equal budgets, and classifiers with and without a mixture's images."""
