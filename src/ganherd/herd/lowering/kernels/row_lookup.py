"""Look up rows of each member's (GAN's) table, as an embedding does, with a deterministic gradient in one launch.

Several samples may look up the same row; the gradient of the row is then the sum of theirs, added in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.ops import MemberRows

_BLOCK, _COLUMNS = 64, 64  # samples and columns in a tile


@triton.jit
def _row_sums(grad, y, out, B, C, R, TILES: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    """Compute the tables' gradient, out [N, R, C]: row r is the sum of grad [N, B, C] over samples with y [N, B] = r.

    A program computes BC columns of one row.
    """
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
    """Look up rows as `MemberRows` does, weight [N, R, C], y [N, B] -> [N, B, C], with the gradient in one launch.

    Differentiable once.
    """

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, grad = ctx.saved_tensors[0].contiguous(), grad.contiguous()
        n, b, c = grad.shape
        out = grad.new_empty(n, ctx.rows, c)
        grid = (triton.cdiv(c, _COLUMNS), ctx.rows, n)
        _row_sums[grid](grad, y, out, b, c, ctx.rows, TILES=triton.cdiv(b, _BLOCK), BB=_BLOCK, BC=_COLUMNS)
        return out, None
