"""Triton kernels; functions in plain PyTorch, mostly in `herd/lowering/ops.py`, define what they compute. No build step."""
