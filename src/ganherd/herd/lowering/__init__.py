"""Run a plain module for all members at once: trace it, fuse its layers, and run them by PyTorch or Triton kernels."""
