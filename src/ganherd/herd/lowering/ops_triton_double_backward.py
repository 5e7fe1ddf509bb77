"""The library of operations that can be differentiated twice, as gradient penalties require.

It has the functions of `ops_triton` that can be differentiated twice, and those of `ops` in place of all others, e.g.
batch norm.
"""

from __future__ import annotations

from ganherd.herd.lowering.ops import batch_norm, divide, instance_norm, rows_of
from ganherd.herd.lowering.ops_triton import (
    add_doubled,
    apply_to_images,
    conv2d,
    conv_transpose2d,
    dropout,
    has_conv_kernel,
    has_group_kernel,
    is_aligned,
    linear,
)

DIFFERENTIABLE_TWICE = True  # for rules that choose between ways of PyTorch, see `function_rules`

__all__ = [
    "DIFFERENTIABLE_TWICE",
    "add_doubled", "apply_to_images", "batch_norm", "conv2d", "conv_transpose2d", "divide", "dropout", "has_conv_kernel",
    "has_group_kernel", "instance_norm", "is_aligned", "linear", "rows_of",
]  # fmt: skip
