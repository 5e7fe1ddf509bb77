"""Where values of a recipe come from: what `data.source` can name, and the options that give overrides."""
