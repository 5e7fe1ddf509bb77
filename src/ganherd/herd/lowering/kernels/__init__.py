"""Triton kernels without a build step. Functions in plain PyTorch, mostly in `herd/lowering/ops.py`, define what they compute."""
