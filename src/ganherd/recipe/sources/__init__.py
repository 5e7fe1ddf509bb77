"""What `data.source` of a recipe can name."""
