"""Heartbeats of ranks, and the detection of ranks that stop sending them."""
