"""Triton kernels for the convolutions of all members, computed as matrix products without im2col."""
