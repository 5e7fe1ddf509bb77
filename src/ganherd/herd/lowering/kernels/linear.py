"""Run the linear layers of all members (GANs) by PyTorch's batched product, and add the biases by a kernel.

`torch.baddbmm` first fills the whole result with the biases and reads it again in the product; the kernel adds the
biases in one pass after the product. `ops.linear` defines the result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.ops import BatchedLinear


@triton.jit
def _add_bias(x, bias, ROW, ROWS, O, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr):
    """Add a bias [N, O] to a tile of x [N, ROWS, O] in place; ROW is the bias's stride from one member to the next."""
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = (row[:, None] < ROWS) & (column[None] < O)
    place = x + n * ROWS * O + row[:, None] * O + column[None]
    added = tl.load(bias + n * ROW + column, mask=column < O, other=0.0)
    tl.store(place, tl.load(place, mask=known, other=0.0) + added[None], mask=known)


def add_bias_(x: Tensor, bias: Tensor) -> Tensor:
    """Add a bias [N, O], whose rows may have gaps between them, to a contiguous x [N, R, O] in place. Return x."""
    n, rows, out = x.shape
    block = min(256, triton.next_power_of_2(out))
    block_r = max(1, 4096 // block)
    grid = (triton.cdiv(rows, block_r), triton.cdiv(out, block), n)
    _add_bias[grid](x, bias, bias.stride(0), rows, out, BLOCK_R=block_r, BLOCK=block)
    return x


class MemberLinear(BatchedLinear):
    """Run linear layers in float32: x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]. Differentiable twice."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        return add_bias_(torch.bmm(x, weight.transpose(1, 2)), bias)
