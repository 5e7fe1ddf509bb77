"""Records of what a finished run has produced."""
