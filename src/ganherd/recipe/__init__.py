"""Recipes: every setting with its meaning and default, how recipes are read and checked, and the packaged ones."""
