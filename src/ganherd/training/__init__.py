"""Running a recipe: from its first step to its mixture, and on again after an interruption."""
