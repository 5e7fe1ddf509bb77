"""Batch norm of every member over `[N, M, C]` (M = samples × places), with the activation that follows it, in one pass each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.kernels.random_bits import dropout_factor
from ganherd.herd.lowering.ops import Epilogue

_ROWS = 64  # rows in a tile
_MOST_PARTS = 128  # that the finishing kernel joins at once
_FEW_PARTS = 64  # that every program of the backward pass may join for itself, which saves a launch


@triton.jit
def _statistics(x, counts, mean, m2, M, C, PARTS, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr):
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
    tl.store(counts + place, tl.zeros((BC,), tl.float32) + count, mask=c < C)
    tl.store(mean + place, anchor + total / count, mask=c < C)
    tl.store(m2 + place, squares - total * total / count, mask=c < C)


@triton.jit
def _finish(
    counts, means, m2s, weight, bias, running_mean, running_var, batches, mean, inv, scale, shift,
    WS, BS, M, C, PARTS, EPS, MOMENTUM, HAS_RUNNING: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Joins the parts of each channel: statistics, the line that normalises, and the running statistics, moved in place.

    WS and BS are the strides of weight and bias from member to member; `batches` [N] counts how often they were moved.
    """
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    n = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, BP)
    known = (part < PARTS)[:, None] & (c < C)[None, :]
    place = (n * PARTS + part)[:, None] * C + c[None, :]
    share = tl.load(counts + place, mask=known, other=0.0) / M  # parts may have unlike numbers of rows
    own = tl.load(means + place, mask=known, other=0.0)
    total = tl.sum(own * share, 0)
    apart = own - total[None, :]
    squares = tl.load(m2s + place, mask=known, other=0.0)
    variance = tl.sum(squares, 0) / M + tl.sum(apart * apart * share, 0)
    here = n * C + c
    inverse = 1.0 / tl.sqrt(variance + EPS)
    a = inverse * tl.load(weight + n * WS + c, mask=c < C, other=0.0)
    tl.store(mean + here, total, mask=c < C)
    tl.store(inv + here, inverse, mask=c < C)
    tl.store(scale + here, a, mask=c < C)
    tl.store(shift + here, tl.load(bias + n * BS + c, mask=c < C, other=0.0) - total * a, mask=c < C)
    if HAS_RUNNING:
        unbiased = variance * M / tl.maximum(M - 1, 1)
        old_mean = tl.load(running_mean + here, mask=c < C, other=0.0)
        old_var = tl.load(running_var + here, mask=c < C, other=0.0)
        tl.store(running_mean + here, old_mean * (1.0 - MOMENTUM) + total * MOMENTUM, mask=c < C)
        tl.store(running_var + here, old_var * (1.0 - MOMENTUM) + unbiased * MOMENTUM, mask=c < C)
        if tl.program_id(0) == 0:
            tl.store(batches + n, tl.load(batches + n) + 1)


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
    x, dy, scale, shift, mean, inv, sums, M, C, PARTS, BLOCK,
    SLOPE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Per part: Σ dz and, BLOCK numbers further, Σ dz·x̂, where dz is the gradient before the activation."""
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
    tl.store(sums + place, total, mask=c < C)
    tl.store(sums + BLOCK + place, weighted, mask=c < C)


@triton.jit(do_not_specialize=["CALL"])
def _backward_apply(
    x, dy, scale, shift, mean, inv, g1, g2, parts, keys, dx, M, C, PARTS, PLACES, CALL, P, SCALE,
    SLOPE: tl.constexpr, IN_SLOPE: tl.constexpr, DROPS: tl.constexpr, JOINS: tl.constexpr, BP: tl.constexpr,
    ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx = scale · (dz − mean(dz) − x̂ · mean(dz·x̂)); g1 and g2 are the two sums.

    JOINS: they are made here, by every program for itself, out of `parts` [2, N, PARTS, C].
    IN_SLOPE, DROPS: x is what an activation, and then a dropout, made; dx is the gradient before these.
    """
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = n * C + c
    a = tl.load(scale + here, mask=c < C, other=0.0)
    b = tl.load(shift + here, mask=c < C, other=0.0)
    mu = tl.load(mean + here, mask=c < C, other=0.0)
    iv = tl.load(inv + here, mask=c < C, other=0.0)
    if JOINS:
        part = tl.arange(0, BP)
        there = (part < PARTS)[:, None] & (c < C)[None, :]
        at = parts + (n * PARTS + part)[:, None] * C + c[None, :]
        s1 = tl.sum(tl.load(at, mask=there, other=0.0), 0)
        s2 = tl.sum(tl.load(at + tl.num_programs(2) * PARTS * C, mask=there, other=0.0), 0)
        first = (c < C) & (tl.program_id(0) == 0)
        tl.store(g1 + here, s1, mask=first)
        tl.store(g2 + here, s2, mask=first)
    else:
        s1 = tl.load(g1 + here, mask=c < C, other=0.0)
        s2 = tl.load(g2 + here, mask=c < C, other=0.0)
    m1 = s1 / M
    m2 = s2 / M
    place = n * M * C + row[:, None] * C + c[None, :]
    known = (row < M)[:, None] & (c < C)[None, :]
    value = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    grad = tl.load(dy + place, mask=known, other=0.0).to(tl.float32)
    grad = tl.where(value * a[None, :] + b[None, :] > 0, grad, grad * SLOPE)
    out = a[None, :] * (grad - m1[None, :] - (value - mu[None, :]) * iv[None, :] * m2[None, :])
    if IN_SLOPE != 1.0:  # x has the sign that it had before
        out = tl.where(value > 0, out, out * IN_SLOPE)
    if DROPS:
        counter = ((row // PLACES)[:, None] * C + c[None, :]) * PLACES + (row % PLACES)[:, None]
        out *= dropout_factor(tl.load(keys + n), CALL, counter, P, SCALE)
    tl.store(dx + place, out.to(dx.dtype.element_ty), mask=known)


class _Grid:
    """How [N, M, C] is cut: tiles of rows, parts of tiles, blocks of channels."""

    def __init__(self, x: Tensor) -> None:
        n, m, c = x.shape
        self.channels = max(16, min(64, triton.next_power_of_2(c)))
        across = triton.cdiv(c, self.channels)
        rows = triton.cdiv(m, _ROWS)
        enough = rows * n * across // 8192  # more programs than this do not fill a GPU better
        self.tiles = triton.next_power_of_2(max(1, enough, triton.cdiv(rows, _MOST_PARTS)))
        self.parts = triton.cdiv(rows, self.tiles)
        self.sums = (self.parts, across, n)
        self.rows = (rows, across, n)


def statistics(x: Tensor) -> Tensor:
    """float32 [3, N, parts, C]: how many rows each part of x [N, M, C] has, their mean and their squared deviations."""
    n, m, c = x.shape
    grid = _Grid(x)
    found = torch.empty(3, n, grid.parts, c, dtype=torch.float32, device=x.device)
    _statistics[grid.sums](x, *found, m, c, grid.parts, ROWS=_ROWS, TILES=grid.tiles, BC=grid.channels)
    return found


def column_sums(x: Tensor) -> Tensor:
    """float32 [N, C]: Σ over the rows of x [N, M, C]; the gradient of a bias."""
    counts, means, _ = statistics(x)
    return (counts * means).sum(1)


@dataclass
class NormOnLoad:
    """A batch norm as the one convolution that reads it sees it."""

    table: Tensor  # float32 [4, N, C]: mean, 1/deviation, scale, shift
    x: Tensor  # [N, M, C] before it
    slope: float  # of its activation below 0
    waits: bool  # its output is still x: who reads it normalises it
    sums: Tensor | None = None  # [2, N, parts, C]: what the reader's backward pass leaves for the one of the batch norm


class MemberNorm(torch.autograd.Function):
    """act(batch_norm(x)) with x [N, M, C] contiguous; slope 1 is no activation, 0 is ReLU, 0.2 is LeakyReLU(0.2).

    `running` (mean and variance [N, C], number of batches [N], contiguous), where given, is moved on by `momentum` in place.
    `stats`: the statistics of x as `statistics` gives them, where the operation that made x has them already.
    `after`: what that operation ended with, on `places` places of an image; then the gradient answered is the one before it.
    `link`: gets the line for the one convolution that reads this. `waits`: x itself is answered, and that one normalises it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, slope: float,
        running: tuple[Tensor, Tensor, Tensor] | None, momentum: float, stats: Tensor | None = None,
        after: Epilogue | None = None, places: int = 1, link: list[NormOnLoad] | None = None, waits: bool = False,
    ) -> Tensor:  # fmt: skip
        n, m, c = x.shape
        grid = _Grid(x)
        stats = statistics(x) if stats is None else stats
        parts = triton.next_power_of_2(stats.shape[2])
        table = torch.empty(4, n, c, dtype=torch.float32, device=x.device)
        mean, inv, scale, shift = table
        running_mean, running_var, batches = running or (mean, mean, mean)
        weight, bias = (value if value.stride(1) == 1 else value.contiguous() for value in (weight, bias))
        _finish[(triton.cdiv(c, 16), n)](
            *stats, weight, bias, running_mean, running_var, batches, mean, inv, scale, shift,
            weight.stride(0), bias.stride(0), m, c, stats.shape[2], eps, momentum,
            HAS_RUNNING=running is not None, BP=parts, BC=16, num_warps=4 if parts <= 128 else 8,
        )  # fmt: skip
        ctx.save_for_backward(x, table)
        ctx.how = (slope, after, places)
        ctx.line = None
        if link is not None:
            ctx.line = NormOnLoad(table, x.detach(), slope, waits)
            link.append(ctx.line)
        if waits:
            return x
        y = torch.empty_like(x)
        _apply[grid.rows](x, scale, shift, y, m, c, SLOPE=slope, ROWS=_ROWS, BC=grid.channels)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, table = ctx.saved_tensors
        mean, inv, scale, shift = table
        slope, after, places = ctx.how
        n, m, c = x.shape
        dy = dy.contiguous()
        grid = _Grid(x)
        sums = ctx.line and ctx.line.sums
        if sums is None:
            sums = torch.empty(2, n, grid.parts, c, dtype=torch.float32, device=x.device)
            _backward_sums[grid.sums](
                x, dy, scale, shift, mean, inv, sums, m, c, grid.parts, sums[0].numel(),
                SLOPE=slope, ROWS=_ROWS, TILES=grid.tiles, BC=grid.channels,
            )  # fmt: skip
        else:
            ctx.line.sums = None
        parts = sums.shape[2]
        joins = parts <= _FEW_PARTS
        s1, s2 = torch.empty(2, n, c, dtype=torch.float32, device=x.device) if joins else sums.sum(2)
        dx = torch.empty_like(x)
        after = after or Epilogue()
        _backward_apply[grid.rows](
            x, dy, scale, shift, mean, inv, s1, s2, sums, x if after.keys is None else after.keys, dx, m, c, parts, places,
            after.call, after.p, 1.0 / (1.0 - after.p), SLOPE=slope, IN_SLOPE=after.slope, DROPS=after.keys is not None,
            JOINS=joins, BP=triton.next_power_of_2(parts) if joins else 1, ROWS=_ROWS, BC=grid.channels,
        )  # fmt: skip
        return dx, s2, s1, *(None,) * 9
