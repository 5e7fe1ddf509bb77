"""Execute training steps member by member, for all members at once or as a CUDA graph, and choose the fastest way."""
