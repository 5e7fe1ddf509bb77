"""Move the groups of a convolution's channels next to the member axis and back: `[N, M, G, C]` ↔ `[N, G, M, C]`.

PyTorch's copies between such layouts take several times as long.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32  # places in a tile


@triton.jit
def _regroup(x, y, M, G: tl.constexpr, C: tl.constexpr, APART: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr):
    """Copy x to y. APART: from [N, M, G, C] to [N, G, M, C], otherwise back."""
    n = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)  # of all groups
    known = (m < M)[:, None] & (channel < G * C)[None, :]
    together = (n * M + m)[:, None] * (G * C) + channel[None, :]
    apart = ((n * G + channel // C)[None, :] * M + m[:, None]) * C + (channel % C)[None, :]
    if APART:
        tl.store(y + apart, tl.load(x + together, mask=known), mask=known)
    else:
        tl.store(y + together, tl.load(x + apart, mask=known), mask=known)


class Regroup(torch.autograd.Function):
    """A contiguous copy of x with its second and third axis swapped. Differentiable any number of times.

    Args:
        x: [N, M, G, C], or [N, G, M, C] if not `apart`; contiguous, with few groups.
        apart: Whether the groups are moved away from their channels, to the member axis.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, apart: bool) -> Tensor:
        ctx.apart = apart
        n, m, g, c = x.shape if apart else (len(x), x.shape[2], x.shape[1], x.shape[3])
        y = x.new_empty((n, g, m, c) if apart else (n, m, g, c))
        channels = min(256, triton.next_power_of_2(g * c))
        grid = (triton.cdiv(m, _ROWS), triton.cdiv(g * c, channels), n)
        _regroup[grid](x, y, m, g, c, APART=apart, ROWS=_ROWS, BC=channels)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return Regroup.apply(grad.contiguous(), not ctx.apart), None
