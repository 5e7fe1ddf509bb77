"""Triton kernels, without a build step. A function in plain PyTorch, mostly in `herd/lowering/ops.py`, defines each of them."""
