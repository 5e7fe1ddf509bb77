"""The hot path: the stacked state of all members, their random streams, their batches and the fused training step."""
