"""The graph of a module: trace it, replace functions by layers, and decide which layers are fused."""
