"""The trained result: generators with their weights, its files, and samples of it."""
