"""The operations of `fast` that can be differentiated twice, for the pass of a gradient penalty; norms are those of `ops`."""

from __future__ import annotations

from ganherd.herd.fast import conv2d, conv_transpose2d, dropout, fits, is_aligned, linear
from ganherd.herd.ops import batch_norm, divide

__all__ = ["batch_norm", "conv2d", "conv_transpose2d", "divide", "dropout", "fits", "is_aligned", "linear"]
