"""Record a run while it trains: metrics and events, previews, validation, TensorBoard and Weights & Biases."""
