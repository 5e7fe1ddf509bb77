"""The operations of `ops_cpu`, but with large linear layers by oneDNN, which is faster than MKL on AMD processors."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.ops import Bias
from ganherd.herd.lowering.ops_cpu import (
    apply_to_images,
    batch_norm,
    conv2d,
    conv_transpose2d,
    divide,
    dropout,
    instance_norm,
    rows_of,
)

__all__ = [
    "apply_to_images", "batch_norm", "conv2d", "conv_transpose2d", "divide", "dropout", "instance_norm", "linear", "rows_of",
]  # fmt: skip

_LEAST = 1 << 22  # multiplications of a member; smaller products are faster in one batched call than member by member


@cache
def is_available() -> bool:
    """Return whether this PyTorch can run products by oneDNN."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class OneDnnProduct(torch.autograd.Function):
    """Multiply each member's a by its transposed b with oneDNN: a [N, M, K], b [N, O, K], bias [N, O] -> [N, M, O].

    Differentiable any number of times. The products of the backward pass have as many multiplications, so they use
    oneDNN too.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Bias) -> Tensor:
        ctx.save_for_backward(a, b)
        # The operation reads a bias as if it were contiguous, whatever its strides are.
        biases = [None] * len(a) if bias is None else bias.contiguous()
        product = torch.ops.mkldnn._linear_pointwise.default
        return torch.stack([product(*one, "none", [], "") for one in zip(a, b, biases, strict=True)])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        needs_a, needs_b, needs_bias = ctx.needs_input_grad
        return (
            _product(dy, b.transpose(1, 2)) if needs_a else None,
            _product(dy.transpose(1, 2), a.transpose(1, 2)) if needs_b else None,
            dy.sum(1) if needs_bias else None,
        )


def _product(a: Tensor, b: Tensor, bias: Bias = None) -> Tensor:
    """Run `OneDnnProduct`."""
    result: Tensor = OneDnnProduct.apply(a, b, bias)  # type: ignore[no-untyped-call]
    return result


def _fastest(x: Tensor, weight: Tensor, bias: Bias) -> Tensor:
    """Run linear layers, x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]; large ones by oneDNN."""
    if x.dtype == torch.float32 and x.shape[1] * weight[0].numel() >= _LEAST:
        return _product(x, weight, bias)
    out: Tensor = ops.BatchedLinear.apply(x, weight, bias)
    return out


linear = partial(ops.linear, product=_fastest)
