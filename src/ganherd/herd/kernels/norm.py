"""Batch norm of every member over `[N, M, C]` (M = samples × places), with the activation that follows it, in one pass each way."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64  # rows in a tile
_TILES = 16  # tiles that one program sums before it writes its part


@triton.jit
def _statistics(x, mean, m2, M, C, PARTS, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr):
    """The mean and the sum of squared deviations of each part of the rows; parts are joined afterwards, in order."""
    part = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    x += n * M * C
    first = part * ROWS * TILES
    anchor = tl.load(x + first * C + c, mask=c < C, other=0.0).to(tl.float32)  # keeps the squares small
    total = tl.zeros((BC,), tl.float32)
    squares = tl.zeros((BC,), tl.float32)
    for tile in range(TILES):
        row = first + tile * ROWS + tl.arange(0, ROWS)
        known = (row < M)[:, None] & (c < C)[None, :]
        value = tl.load(x + row[:, None] * C + c[None, :], mask=known, other=0.0).to(tl.float32)
        value = tl.where(known, value - anchor[None, :], 0.0)
        total += tl.sum(value, 0)
        squares += tl.sum(value * value, 0)
    count = tl.minimum(M - first, ROWS * TILES).to(tl.float32)
    place = (n * PARTS + part) * C + c
    tl.store(mean + place, anchor + total / count, mask=c < C)
    tl.store(m2 + place, squares - total * total / count, mask=c < C)


@triton.jit
def _apply(x, scale, shift, y, M, C, SLOPE: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr):
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    a = tl.load(scale + n * C + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * C + c, mask=c < C, other=0.0)
    place = n * M * C + row[:, None] * C + c[None, :]
    known = (row < M)[:, None] & (c < C)[None, :]
    value = tl.load(x + place, mask=known, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
    value = tl.where(value > 0, value, value * SLOPE)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=known)


@triton.jit
def _backward_sums(
    x, dy, scale, shift, mean, inv, s1, s2, M, C, PARTS,
    SLOPE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Per part: Σ dz and Σ dz·x̂, where dz is the gradient before the activation."""
    part = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    a = tl.load(scale + n * C + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * C + c, mask=c < C, other=0.0)
    mu = tl.load(mean + n * C + c, mask=c < C, other=0.0)
    iv = tl.load(inv + n * C + c, mask=c < C, other=0.0)
    total = tl.zeros((BC,), tl.float32)
    weighted = tl.zeros((BC,), tl.float32)
    for tile in range(TILES):
        row = part * ROWS * TILES + tile * ROWS + tl.arange(0, ROWS)
        known = (row < M)[:, None] & (c < C)[None, :]
        place = n * M * C + row[:, None] * C + c[None, :]
        value = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
        grad = tl.load(dy + place, mask=known, other=0.0).to(tl.float32)
        grad = tl.where(value * a[None, :] + b[None, :] > 0, grad, grad * SLOPE)
        total += tl.sum(grad, 0)
        weighted += tl.sum(grad * (value - mu[None, :]) * iv[None, :], 0)
    place = (n * PARTS + part) * C + c
    tl.store(s1 + place, total, mask=c < C)
    tl.store(s2 + place, weighted, mask=c < C)


@triton.jit
def _backward_apply(
    x, dy, scale, shift, mean, inv, g1, g2, dx, M, C, SLOPE: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr
):
    """dx = scale · (dz − mean(dz) − x̂ · mean(dz·x̂)); g1 and g2 are the two means."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = n * C + c
    a = tl.load(scale + here, mask=c < C, other=0.0)
    b = tl.load(shift + here, mask=c < C, other=0.0)
    mu = tl.load(mean + here, mask=c < C, other=0.0)
    iv = tl.load(inv + here, mask=c < C, other=0.0)
    m1 = tl.load(g1 + here, mask=c < C, other=0.0)
    m2 = tl.load(g2 + here, mask=c < C, other=0.0)
    place = n * M * C + row[:, None] * C + c[None, :]
    known = (row < M)[:, None] & (c < C)[None, :]
    value = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    grad = tl.load(dy + place, mask=known, other=0.0).to(tl.float32)
    grad = tl.where(value * a[None, :] + b[None, :] > 0, grad, grad * SLOPE)
    out = a[None, :] * (grad - m1[None, :] - (value - mu[None, :]) * iv[None, :] * m2[None, :])
    tl.store(dx + place, out.to(dx.dtype.element_ty), mask=known)


def _grids(x: Tensor) -> tuple[int, int, tuple[int, int, int], tuple[int, int, int]]:
    """(channels in a tile, parts, grid of the sums, grid of the rows)."""
    n, m, c = x.shape
    bc = max(16, min(64, triton.next_power_of_2(c)))
    parts = triton.cdiv(m, _ROWS * _TILES)
    across = triton.cdiv(c, bc)
    return bc, parts, (parts, across, n), (triton.cdiv(m, _ROWS), across, n)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, biased variance) float32 [N, C] of x [N, M, C]."""
    n, m, c = x.shape
    bc, parts, sums, _ = _grids(x)
    mean, m2 = (torch.empty(n, parts, c, dtype=torch.float32, device=x.device) for _ in range(2))
    _statistics[sums](x, mean, m2, m, c, parts, ROWS=_ROWS, TILES=_TILES, BC=bc)
    if parts == 1:
        return mean[:, 0], m2[:, 0] / m
    whole = float(_ROWS * _TILES)
    last = m - (parts - 1) * whole  # rows of the last part
    weight = torch.full((parts, 1), whole / m, device=x.device)
    weight[-1] = last / m
    total = (mean * weight).sum(1)
    return total, m2.sum(1) / m + ((mean - total[:, None]).square() * weight).sum(1)


class MemberNorm(torch.autograd.Function):
    """act(batch_norm(x)) with x [N, M, C] contiguous; slope 1 is no activation, 0 is ReLU, 0.2 is LeakyReLU(0.2)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, slope: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = statistics(x)
        inv = torch.rsqrt(var + eps)
        scale = inv * weight
        shift = bias - mean * scale
        y = torch.empty_like(x)
        bc, _, _, rows = _grids(x)
        _apply[rows](x, scale, shift, y, x.shape[1], x.shape[2], SLOPE=slope, ROWS=_ROWS, BC=bc)
        ctx.save_for_backward(x, scale, shift, mean, inv)
        ctx.slope = slope
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
        x, scale, shift, mean, inv = ctx.saved_tensors
        n, m, c = x.shape
        dy = dy.contiguous()
        bc, parts, sums, rows = _grids(x)
        s1, s2 = (torch.empty(n, parts, c, dtype=torch.float32, device=x.device) for _ in range(2))
        _backward_sums[sums](
            x, dy, scale, shift, mean, inv, s1, s2, m, c, parts, SLOPE=ctx.slope, ROWS=_ROWS, TILES=_TILES, BC=bc
        )
        s1, s2 = s1.sum(1), s2.sum(1)
        dx = torch.empty_like(x)
        _backward_apply[rows](
            x, dy, scale, shift, mean, inv, s1 / m, s2 / m, dx, m, c, SLOPE=ctx.slope, ROWS=_ROWS, BC=bc
        )
        return dx, s2, s1, None, None
