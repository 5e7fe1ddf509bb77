"""Triton kernels. A function in plain PyTorch, mostly in `lowering/ops.py`, defines what each computes. There is no build step."""
