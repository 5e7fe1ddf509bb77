"""The end of a convolution kernel: bias, activation, dropout, and what a batch norm before or after it needs.

A tile `acc` of y [N, B, OH, OW, CO] has the places (b, oy, ox) as rows and the channels co as columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ganherd.herd.lowering.kernels.random_bits import dropout_factor


@triton.jit
def activate(
    acc, value, bias, keys, n, b, oy, ox, co, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, BS, DC: tl.constexpr,
    CALL, P, SCALE, HAS_BIAS: tl.constexpr, OUT_SLOPE: tl.constexpr, DROPS: tl.constexpr, UNDO: tl.constexpr,
):  # fmt: skip
    """Add the bias to a tile, apply an activation (OUT_SLOPE) and dropout (DROPS) as `random_bits` defines it.

    Columns are (place, channel) with DC channels.

    UNDO: the tile is the gradient of an activation and a dropout with the output `value`; undo these instead.
    """
    if HAS_BIAS:
        acc += tl.load(bias + n * BS + co, mask=co < CO, other=0.0).to(tl.float32)[None, :]
    if OUT_SLOPE != 1.0:
        sign = value if UNDO else acc
        acc = tl.where(sign > 0, acc, acc * OUT_SLOPE)
    if DROPS:
        size = OH * OW
        counter = (b[:, None] * DC + (co % DC)[None, :]) * (CO // DC * size)
        counter += (co // DC * size)[None, :] + (oy * OW + ox)[:, None]
        acc *= dropout_factor(tl.load(keys + n), CALL, counter, P, SCALE)
    return acc


@triton.jit
def store_moments(
    acc, stats, n, partial, co, known, CO: tl.constexpr, PARTIALS, BM: tl.constexpr, BN: tl.constexpr, ALL: tl.constexpr
):
    """Store the count, mean and squared deviations of the known rows of a tile in stats [3, N, PARTIALS, CO].

    ALL: all of the BM rows and BN columns are known.
    """
    if ALL:
        count = BM * 1.0
        mean = tl.sum(acc, 0) / count
        deviation = acc - mean[None, :]
    else:
        mask = known[:, None] & (co < CO)[None, :]
        count = tl.sum(known.to(tl.float32), 0)
        mean = tl.sum(tl.where(mask, acc, 0.0), 0) / tl.maximum(count, 1.0)
        deviation = tl.where(mask, acc - mean[None, :], 0.0)
    here = stats + (n * PARTIALS + partial) * CO + co
    block = tl.num_programs(2).to(tl.int64) * PARTIALS * CO
    tl.store(here, tl.zeros((BN,), tl.float32) + count, mask=co < CO)
    tl.store(here + block, mean, mask=co < CO)
    tl.store(here + 2 * block, tl.sum(deviation * deviation, 0), mask=co < CO)


@triton.jit
def store_norm_sums(
    grad, value, stats, table, n, partial, co, known, CO: tl.constexpr, PARTIALS, LC: tl.constexpr, SLOPE: tl.constexpr,
    ALL: tl.constexpr,
):  # fmt: skip
    """Store the sums that the backward pass of a batch norm needs in stats [2, N, PARTIALS, CO].

    The batch norm (`table` [4, N, LC], SLOPE) has the input `value`, and its output has the gradient `grad`.

    ALL: all rows and columns are known.
    """
    block = tl.num_programs(2).to(tl.int64) * LC
    channel = table + n * LC + co % LC
    value = value.to(tl.float32)
    above = value * tl.load(channel + 2 * block)[None, :] + tl.load(channel + 3 * block)[None, :] > 0
    grad = tl.where(above, grad, grad * SLOPE)
    if not ALL:
        grad = tl.where(known[:, None] & (co < CO)[None, :], grad, 0.0)
    here = stats + (n * PARTIALS + partial) * CO + co
    tl.store(here, tl.sum(grad, 0), mask=co < CO)
    grad *= (value - tl.load(channel)[None, :]) * tl.load(channel + block)[None, :]
    tl.store(here + tl.num_programs(2).to(tl.int64) * PARTIALS * CO, tl.sum(grad, 0), mask=co < CO)
