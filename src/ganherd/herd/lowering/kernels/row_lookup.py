"""Look up rows of a table for every member; the gradient adds the rows of each entry in a fixed order, in one launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.ops import MemberRows

_BLOCK, _COLUMNS = 64, 64  # rows of the gradient and columns in a tile


@triton.jit
def _row_sums(grad, y, out, B, C, R, TILES: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    """Compute out [N, R, C]: the sum of those rows of grad [N, B, C] whose y [N, B] is the row of out."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    row = tl.program_id(1)
    n = tl.program_id(2).to(tl.int64)
    total = tl.zeros((BC,), tl.float32)
    for tile in range(TILES):
        b = tile * BB + tl.arange(0, BB)
        chosen = tl.load(y + n * B + b, mask=b < B, other=-1) == row
        mask = chosen[:, None] & (c < C)[None, :]
        total += tl.sum(tl.load(grad + (n * B + b)[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32), 0)
    tl.store(out + (n * R + row) * C + c, total, mask=c < C)


class MemberRowsByKernel(MemberRows):
    """`MemberRows` with its gradient in one launch. Differentiable once."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, grad = ctx.saved_tensors[0].contiguous(), grad.contiguous()
        n, b, c = grad.shape
        out = grad.new_empty(n, ctx.rows, c)
        grid = (triton.cdiv(c, _COLUMNS), ctx.rows, n)
        _row_sums[grid](grad, y, out, b, c, ctx.rows, TILES=triton.cdiv(b, _BLOCK), BB=_BLOCK, BC=_COLUMNS)
        return out, None
