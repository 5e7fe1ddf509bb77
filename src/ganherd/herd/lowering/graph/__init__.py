"""The graph of a module: traced, with layers in place of functions, and with what is fused."""
