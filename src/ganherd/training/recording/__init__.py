"""Record a run while it trains: progress, metrics and events, previews, validation, TensorBoard and Weights & Biases."""
