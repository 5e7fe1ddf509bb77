"""Prepare a run: data, nets, herd, engine and strategy from a recipe, and all checks before the first step."""
