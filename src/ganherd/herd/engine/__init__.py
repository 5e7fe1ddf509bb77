"""Execute training steps member by member, all at once or as a CUDA graph, and choose the fastest of these."""
