"""Operations that can be differentiated twice, for gradient penalties: the kernels of `ops_triton`, and batch norm of `ops`."""

from __future__ import annotations

from ganherd.herd.lowering.ops import batch_norm, divide
from ganherd.herd.lowering.ops_triton import conv2d, conv_transpose2d, dropout, has_conv_kernel, is_aligned, linear

__all__ = ["batch_norm", "conv2d", "conv_transpose2d", "divide", "dropout", "has_conv_kernel", "is_aligned", "linear"]
