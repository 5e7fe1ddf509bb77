"""The operations of `fast` that can be differentiated twice, for the pass of a gradient penalty; norms are those of `ops`."""

from __future__ import annotations

from ganherd.herd.lowering.ops import batch_norm, divide
from ganherd.herd.lowering.ops_triton import conv2d, conv_transpose2d, dropout, fits, is_aligned, linear

__all__ = ["batch_norm", "conv2d", "conv_transpose2d", "divide", "dropout", "fits", "is_aligned", "linear"]
