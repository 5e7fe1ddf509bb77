"""Move the groups of a convolution's channels next to the member axis and back: `[N, M, G, C]` ↔ `[N, G, M, C]`.

N counts members (GANs), M places (pixels of all samples), G groups and C channels of a group. PyTorch's copies between
these layouts take several times as long.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32  # places in a tile


@triton.jit
def _regroup(
    x, y, M, G: tl.constexpr, C: tl.constexpr, GROUPS_FIRST: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr
):
    """Copy x [N, M, G, C] to y [N, G, M, C] if GROUPS_FIRST, otherwise x [N, G, M, C] to y [N, M, G, C]."""
    n = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)  # of all groups
    known = (m < M)[:, None] & (channel < G * C)[None, :]
    groups_last = (n * M + m)[:, None] * (G * C) + channel[None, :]
    groups_first = ((n * G + channel // C)[None, :] * M + m[:, None]) * C + (channel % C)[None, :]
    if GROUPS_FIRST:
        tl.store(y + groups_first, tl.load(x + groups_last, mask=known), mask=known)
    else:
        tl.store(y + groups_last, tl.load(x + groups_first, mask=known), mask=known)


class Regroup(torch.autograd.Function):
    """Return a contiguous copy of x with its second and third axis swapped. Differentiable any number of times.

    Args:
        x: [N, M, G, C] if `groups_first`, otherwise [N, G, M, C]; contiguous, with few groups.
        groups_first: Whether the groups come before the places in the result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups_first: bool) -> Tensor:
        ctx.groups_first = groups_first
        n, m, g, c = x.shape if groups_first else (len(x), x.shape[2], x.shape[1], x.shape[3])
        y = x.new_empty((n, g, m, c) if groups_first else (n, m, g, c))
        channels = min(256, triton.next_power_of_2(g * c))
        grid = (triton.cdiv(m, _ROWS), triton.cdiv(g * c, channels), n)
        _regroup[grid](x, y, m, g, c, GROUPS_FIRST=groups_first, ROWS=_ROWS, BC=channels)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return Regroup.apply(grad.contiguous(), not ctx.groups_first), None
