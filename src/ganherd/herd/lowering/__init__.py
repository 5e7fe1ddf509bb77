"""Run one plain module for all members at once: trace it, fuse its layers, and execute them by PyTorch or by Triton kernels."""
