"""Run the batch norm of every member on `[N, M, C]` (M = samples × places), fused with the activation after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.kernels.partial_sums import add_partials
from ganherd.herd.lowering.kernels.random_bits import dropout_factor
from ganherd.herd.lowering.ops import Epilogue

_ROWS = 64  # rows in a tile
_MAX_PARTIALS = 128  # partial results that `_finish` combines
# Up to this number, every program of the backward pass adds all partial sums itself, which saves a launch.
_FEW_PARTIALS = 64

Running = tuple[Tensor, Tensor, Tensor] | None  # mean and variance [N, C] and number of batches [N], updated in place


@triton.jit
def _statistics(x, counts, mean, m2, M, C, PARTIALS, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr):
    """Compute count, mean and sum of squared deviations of each block of rows; `_finish` combines them in a fixed order."""
    partial = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    x += n * M * C
    first = partial * ROWS * TILES
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
    place = (n * PARTIALS + partial) * C + c
    tl.store(counts + place, tl.zeros((BC,), tl.float32) + count, mask=c < C)
    tl.store(mean + place, anchor + total / count, mask=c < C)
    tl.store(m2 + place, squares - total * total / count, mask=c < C)


@triton.jit
def _finish(
    counts, means, m2s, weight, bias, running_mean, running_var, batches, mean, inv, scale, shift,
    WS, BS, M, C, PARTIALS, EPS, MOMENTUM, AFFINE: tl.constexpr, HAS_RUNNING: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Combine the partial statistics of each channel: compute scale and shift, and update running statistics in place.

    WS and BS are the strides of weight and bias from one member to the next; `batches` [N] counts the updates.
    AFFINE: there are weight and bias; without them scale and shift only normalise.
    """
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    n = tl.program_id(1).to(tl.int64)
    partial = tl.arange(0, BP)
    known = (partial < PARTIALS)[:, None] & (c < C)[None, :]
    place = (n * PARTIALS + partial)[:, None] * C + c[None, :]
    share = tl.load(counts + place, mask=known, other=0.0) / M  # the last block may have fewer rows
    means_here = tl.load(means + place, mask=known, other=0.0)
    total = tl.sum(means_here * share, 0)
    deviation = means_here - total[None, :]
    squares = tl.load(m2s + place, mask=known, other=0.0)
    variance = tl.sum(squares, 0) / M + tl.sum(deviation * deviation * share, 0)
    here = n * C + c
    inverse = 1.0 / tl.sqrt(variance + EPS)
    a = inverse
    b = tl.zeros((BC,), tl.float32)
    if AFFINE:
        a = inverse * tl.load(weight + n * WS + c, mask=c < C, other=0.0)
        b = tl.load(bias + n * BS + c, mask=c < C, other=0.0)
    tl.store(mean + here, total, mask=c < C)
    tl.store(inv + here, inverse, mask=c < C)
    tl.store(scale + here, a, mask=c < C)
    tl.store(shift + here, b - total * a, mask=c < C)
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
    """Compute y = act(x · scale + shift) for a tile."""
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
    x, dy, scale, shift, mean, inv, sums, M, C, PARTIALS, BLOCK,
    SLOPE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute the partial sums Σ dz and, BLOCK numbers later, Σ dz·x̂, where dz is the gradient before the activation."""
    partial = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    a = tl.load(scale + n * C + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * C + c, mask=c < C, other=0.0)
    mu = tl.load(mean + n * C + c, mask=c < C, other=0.0)
    iv = tl.load(inv + n * C + c, mask=c < C, other=0.0)
    total = tl.zeros((BC,), tl.float32)
    weighted = tl.zeros((BC,), tl.float32)
    for tile in range(TILES):
        row = partial * ROWS * TILES + tile * ROWS + tl.arange(0, ROWS)
        known = (row < M)[:, None] & (c < C)[None, :]
        place = n * M * C + row[:, None] * C + c[None, :]
        value = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
        grad = tl.load(dy + place, mask=known, other=0.0).to(tl.float32)
        grad = tl.where(value * a[None, :] + b[None, :] > 0, grad, grad * SLOPE)
        total += tl.sum(grad, 0)
        weighted += tl.sum(grad * (value - mu[None, :]) * iv[None, :], 0)
    place = (n * PARTIALS + partial) * C + c
    tl.store(sums + place, total, mask=c < C)
    tl.store(sums + BLOCK + place, weighted, mask=c < C)


@triton.jit(do_not_specialize=["CALL"])
def _backward_apply(
    x, dy, scale, shift, mean, inv, g1, g2, partials, keys, dx, M, C, PARTIALS, PLACES, CALL, P, SCALE,
    SLOPE: tl.constexpr, IN_SLOPE: tl.constexpr, DROPS: tl.constexpr, ADDS: tl.constexpr, BP: tl.constexpr,
    ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute dx = scale · (dz − mean(dz) − x̂ · mean(dz·x̂)) from the sums g1 = Σ dz and g2 = Σ dz·x̂.

    ADDS: every program first adds the partial sums `partials` [2, N, PARTIALS, C] itself, and the first one stores g1 and g2.
    IN_SLOPE, DROPS: x is the output of an activation and a dropout; dx is the gradient of their input.
    """
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = n * C + c
    a = tl.load(scale + here, mask=c < C, other=0.0)
    b = tl.load(shift + here, mask=c < C, other=0.0)
    mu = tl.load(mean + here, mask=c < C, other=0.0)
    iv = tl.load(inv + here, mask=c < C, other=0.0)
    if ADDS:
        partial = tl.arange(0, BP)
        valid = (partial < PARTIALS)[:, None] & (c < C)[None, :]
        at = partials + (n * PARTIALS + partial)[:, None] * C + c[None, :]
        s1 = tl.sum(tl.load(at, mask=valid, other=0.0), 0)
        s2 = tl.sum(tl.load(at + tl.num_programs(2) * PARTIALS * C, mask=valid, other=0.0), 0)
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
    if IN_SLOPE != 1.0:  # an activation does not change signs, so x tells where its input was positive
        out = tl.where(value > 0, out, out * IN_SLOPE)
    if DROPS:
        counter = ((row // PLACES)[:, None] * C + c[None, :]) * PLACES + (row % PLACES)[:, None]
        out *= dropout_factor(tl.load(keys + n), CALL, counter, P, SCALE)
    tl.store(dx + place, out.to(dx.dtype.element_ty), mask=known)


def channels_in_tile(c: int) -> int:
    """Return how many of c channels a program computes."""
    return max(16, min(64, triton.next_power_of_2(c)))


class _Grid:
    """The division of [N, M, C] among programs: tiles of rows, blocks of tiles (one partial result each), blocks of channels."""

    def __init__(self, x: Tensor) -> None:
        """Choose the division for x [N, M, C]."""
        n, m, c = x.shape
        self.channels = channels_in_tile(c)
        across = triton.cdiv(c, self.channels)
        rows = triton.cdiv(m, _ROWS)
        enough = rows * n * across // 8192  # tiles per program; more than 8192 programs do not fill a GPU better
        self.tiles = triton.next_power_of_2(max(1, enough, triton.cdiv(rows, _MAX_PARTIALS)))
        self.partials = triton.cdiv(rows, self.tiles)
        self.sums = (self.partials, across, n)
        self.rows = (rows, across, n)


def statistics(x: Tensor) -> Tensor:
    """Return partial statistics of x [N, M, C], float32 [3, N, partials, C]: count, mean and sum of squared deviations."""
    n, m, c = x.shape
    grid = _Grid(x)
    stats = torch.empty(3, n, grid.partials, c, dtype=torch.float32, device=x.device)
    _statistics[grid.sums](x, *stats, m, c, grid.partials, ROWS=_ROWS, TILES=grid.tiles, BC=grid.channels)
    return stats


def finish_statistics(
    stats: Tensor, m: int, eps: float, running: Running, momentum: float, weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Combine partial statistics [3, N, partials, C] of m rows; update running statistics in place.

    Returns:
        float32 [4, N, C]: mean, 1/deviation, scale and shift, the last two with weight and bias [N, C] if there are any.
    """
    _, n, partials, c = stats.shape
    table = torch.empty(4, n, c, dtype=torch.float32, device=stats.device)
    mean, inv, scale, shift = table
    running_mean, running_var, batches = running or (mean, mean, mean)
    gain, offset = (
        mean if value is None else value if value.stride(1) == 1 else value.contiguous() for value in (weight, bias)
    )
    padded = triton.next_power_of_2(partials)
    _finish[(triton.cdiv(c, 16), n)](
        *stats, gain, offset, running_mean, running_var, batches, mean, inv, scale, shift,
        gain.stride(0), offset.stride(0), m, c, partials, eps, momentum, AFFINE=weight is not None,
        HAS_RUNNING=running is not None, BP=padded, BC=16, num_warps=4 if padded <= 128 else 8,
    )  # fmt: skip
    return table


def column_sums(x: Tensor) -> Tensor:
    """Sum x [N, M, C] over its rows, float32 [N, C]: the gradient of a bias."""
    counts, means, _ = statistics(x)
    return (counts * means).sum(1)


@dataclass
class NormOnLoad:
    """What a convolution has to know about the batch norm that computed its input, if nothing else reads that."""

    table: Tensor  # float32 [4, N, C]: mean, 1/deviation, scale, shift
    x: Tensor  # [N, M, C] the input of the batch norm
    slope: float  # of its activation below 0
    pending: bool  # the batch norm returned x itself, and the convolution normalises it on load
    sums: Tensor | None = None  # [2, N, partials, C] from the convolution's backward pass, for that of the batch norm


class MemberNorm(torch.autograd.Function):
    """act(batch_norm(x)) of a contiguous x [N, M, C]. Slope 1 means no activation, 0 ReLU, 0.2 LeakyReLU(0.2).

    Args:
        weight, bias: [N, C], or both None.
        running: Contiguous running statistics, updated with `momentum`.
        stats: Partial statistics of x as `statistics` returns them, if the operation that computed x has them already.
        epilogue: The epilogue of the operation that computed x; the gradient of its input is returned then.
        places: Pixels of an image, for the dropout of the epilogue.
        link: Gets a `NormOnLoad` for the convolution that alone reads the output.
        pending: Return x itself; that convolution normalises it on load.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float,
        running: Running, momentum: float, stats: Tensor | None = None,
        epilogue: Epilogue | None = None, places: int = 1, link: list[NormOnLoad] | None = None, pending: bool = False,
    ) -> Tensor:  # fmt: skip
        _, m, c = x.shape
        grid = _Grid(x)
        stats = statistics(x) if stats is None else stats
        table = finish_statistics(stats, m, eps, running, momentum, weight, bias)
        ctx.save_for_backward(x, table)
        ctx.settings = (slope, epilogue, places)
        ctx.affine = weight is not None
        ctx.on_load = None
        if link is not None:
            ctx.on_load = NormOnLoad(table, x.detach(), slope, pending)
            link.append(ctx.on_load)
        if pending:
            return x
        y = torch.empty_like(x)
        _apply[grid.rows](x, table[2], table[3], y, m, c, SLOPE=slope, ROWS=_ROWS, BC=grid.channels)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, table = ctx.saved_tensors
        mean, inv, scale, shift = table
        slope, epilogue, places = ctx.settings
        n, m, c = x.shape
        dy = dy.contiguous()
        grid = _Grid(x)
        sums = ctx.on_load and ctx.on_load.sums
        if sums is None:
            sums = torch.empty(2, n, grid.partials, c, dtype=torch.float32, device=x.device)
            _backward_sums[grid.sums](
                x, dy, scale, shift, mean, inv, sums, m, c, grid.partials, sums[0].numel(),
                SLOPE=slope, ROWS=_ROWS, TILES=grid.tiles, BC=grid.channels,
            )  # fmt: skip
        else:
            ctx.on_load.sums = None
        partials = sums.shape[2]
        adds = partials <= _FEW_PARTIALS
        s1, s2 = torch.empty(2, n, c, dtype=torch.float32, device=x.device) if adds else add_partials(sums)
        dx = torch.empty_like(x)
        epilogue = epilogue or Epilogue()
        _backward_apply[grid.rows](
            x, dy, scale, shift, mean, inv, s1, s2, sums, x if epilogue.keys is None else epilogue.keys, dx, m, c,
            partials, places, epilogue.call, epilogue.p, 1.0 / (1.0 - epilogue.p),
            SLOPE=slope, IN_SLOPE=epilogue.slope, DROPS=epilogue.keys is not None,
            ADDS=adds, BP=triton.next_power_of_2(partials) if adds else 1, ROWS=_ROWS, BC=grid.channels,
        )  # fmt: skip
        return dx, *((s2, s1) if ctx.affine else (None, None)), *(None,) * 9
