"""From a recipe to a herd that is ready for its first step, and all checks before it."""
