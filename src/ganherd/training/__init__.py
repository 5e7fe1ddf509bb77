"""Train a recipe from its first step to its mixture, and resume it after an interruption."""
