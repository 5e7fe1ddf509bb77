"""Run one plain module for all members at once: traced, fused, and executed by PyTorch or by kernels."""
