"""Triton kernels, each beside a PyTorch twin in `herd.ops` that defines it. No build step; importing this needs no Triton."""
