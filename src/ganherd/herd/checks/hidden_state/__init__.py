"""Detect state that a net keeps in addition to parameters and buffers: in the module, and in variables outside of it."""
