"""Ways to execute the step: member by member, all at once, or as a CUDA graph; and the choice between them."""
