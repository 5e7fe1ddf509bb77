"""Run the batch norm of all N members (GANs) in one launch, fused with the activation after it.

Inputs are `[N, M, C]`: C channels and M rows for each member, one row for each pixel of each sample. In the formulas x̂
is the normalised input (x − mean) / deviation. `scale` and `shift` include weight and bias: the batch norm of x is
x · scale + shift.
"""

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
_MAX_PARTIALS = 128  # at most this many partial results for each channel, which `_finish` combines
# Up to this many partial sums, every program of the backward pass adds all of them itself, which saves a launch.
_FEW_PARTIALS = 64

Running = tuple[Tensor, Tensor, Tensor] | None  # mean and variance [N, C] and number of batches [N], updated in place


@triton.jit
def _statistics(x, counts, mean, m2, M, C, PARTIALS, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr):
    """Compute the statistics of blocks of ROWS · TILES rows of x [N, M, C], for `_finish` to combine in a fixed order.

    `counts`, `mean` and `m2` [N, PARTIALS, C] get each block's number of rows, mean and sum of squared deviations from
    its mean.
    """
    partial = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    x += n * M * C
    first = partial * ROWS * TILES
    # Subtract the block's first row from all rows: small squares lose no precision in the difference at the end.
    anchor = tl.load(x + first * C + c, mask=c < C, other=0.0).to(tl.float32)
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
    """Combine the partial statistics of each channel to mean, 1/deviation, scale and shift; update running statistics.

    WS and BS are the strides of weight and bias from one member to the next.
    AFFINE: include weight and bias in scale and shift; otherwise scale and shift only normalise.
    HAS_RUNNING: update `running_mean` and `running_var` [N, C] in place, and count the update in `batches` [N].
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
    """Compute y = act(x · scale + shift) for a tile of x [N, M, C]; act is a (leaky) ReLU with this SLOPE below 0."""
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
    """Compute the two sums over rows that the gradient of a batch norm needs, for blocks of ROWS · TILES rows.

    These are Σ dz and Σ dz·x̂, where dz is the gradient of the activation's input. The first goes to `sums`
    [N, PARTIALS, C], the second to the same place BLOCK numbers later.
    """
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
    """Compute the input gradient of a batch norm and its activation, dx = scale · (dz − mean(dz) − x̂ · mean(dz·x̂)).

    dz is the gradient of the activation's input. Its sums over the M rows are g1 = Σ dz and g2 = Σ dz·x̂, [N, C].

    ADDS: g1 and g2 are not computed yet: every program adds `partials` [2, N, PARTIALS, C] itself, and the first one
        for each channel stores the sums in g1 and g2.
    IN_SLOPE, DROPS: x is the output of an activation with slope IN_SLOPE and of a dropout, fused into the layer before;
        dx is the gradient of the activation's input.
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
    """Return how many channels one program computes, a power of two from 16 to 64, for a tensor with c channels."""
    return max(16, min(64, triton.next_power_of_2(c)))


class _Grid:
    """The division of a tensor [N, M, C] among the programs of a kernel.

    Attributes:
        channels: Channels in a tile.
        tiles: Tiles of `_ROWS` rows that one program reads to compute one partial result.
        partials: Partial results for each member and channel.
        sums: Launch grid of kernels that compute partial results.
        rows: Launch grid of kernels with one program for each tile.
    """

    def __init__(self, x: Tensor) -> None:
        """Choose the division for a tensor of the shape of x [N, M, C]."""
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
    """Combine partial statistics to those of all rows, and update running statistics in place.

    Args:
        stats: [3, N, partials, C] from `statistics`.
        m: Number of rows of each member that the statistics cover.
        running: Running mean, variance and number of batches, updated with `momentum`; None: there are none.
        weight, bias: [N, C], or both None.

    Returns:
        float32 [4, N, C]: mean, 1/deviation, scale and shift, such that the batch norm of x is x · scale + shift.
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
    """Return the sum of x [N, M, C] over its rows, float32 [N, C].

    If x is the gradient of a layer's output, this is the gradient of the layer's bias.
    """
    counts, means, _ = statistics(x)
    return (counts * means).sum(1)


@dataclass
class NormOnLoad:
    """The batch norm before a convolution, for a convolution that is the only reader of the batch norm's output.

    The convolution can then normalise its input when it loads it, and its backward pass can compute sums for the batch
    norm's.
    """

    table: Tensor  # float32 [4, N, C]: mean, 1/deviation, scale, shift
    x: Tensor  # [N, M, C] the input of the batch norm
    slope: float  # of the activation after the batch norm, below 0
    pending: bool  # the batch norm returned x itself, and the convolution normalises it on load
    # [2, N, partials, C] the sums of `_backward_sums`, if the convolution's backward pass has computed them
    sums: Tensor | None = None


class MemberNorm(torch.autograd.Function):
    """Compute act(batch_norm(x)) of a contiguous x [N, M, C] with the statistics of this batch. Differentiable once.

    Args:
        weight, bias: [N, C], or both None.
        slope: Slope of the activation below 0: 1 means no activation, 0 ReLU, 0.2 LeakyReLU(0.2).
        running: Contiguous running statistics, updated in place with `momentum`.
        stats: Partial statistics of x from `statistics`, if the operation that computed x has them already.
        epilogue: The activation and dropout that the operation before fused into itself to compute x. The gradient that
            is returned is then that of their input, not that of x.
        places: Pixels of an image, which the dropout of the epilogue needs to number its draws.
        link: A list to which a `NormOnLoad` is appended, if a convolution is the only reader of the output.
        pending: Return x itself instead of the output; that convolution normalises it on load.
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
