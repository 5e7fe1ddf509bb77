"""The hot path: the stacked state of all members, their random numbers, their batches, and the fused step."""
