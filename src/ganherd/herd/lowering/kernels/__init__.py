"""Triton kernels. Functions in plain PyTorch, mostly in `herd/lowering/ops.py`, define what they compute."""
