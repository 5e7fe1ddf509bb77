"""The end of a convolution kernel: bias, activation, dropout, and the sums that a batch norm before or after it needs.

A tile of the output y [N, B, OH, OW, CO] is a matrix [BM, BN] whose rows are the places (b, oy, ox) and whose columns
are the channels co of one member n. The row mask `known` excludes rows beyond the last place.
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
    """Add the bias to a tile `acc` [BM, BN], apply an activation with slope OUT_SLOPE below 0, then dropout if DROPS.

    The dropout mask depends on the keys [N] of the members, the number CALL of the draw, the probability P and the
    index of a number in plain PyTorch's memory order; SCALE is 1 / (1 - P). If the layer is a linear one whose output
    is unflattened to images, its columns are (place, channel) with DC channels; otherwise DC is CO.

    UNDO: compute the backward pass of the activation and the dropout instead. The tile is then the gradient of their
        output, and `value` is that output.
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
    """Store partial statistics of a tile for the batch norm after the convolution, in stats [3, N, PARTIALS, CO].

    These are the count, the mean and the sum of squared deviations of the known rows, for each channel. `partial` is
    the number of the tile.

    ALL: all BM rows and BN columns are inside of y, so that nothing has to be masked.
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
    """Store partial sums for the backward pass of the batch norm before the convolution, in stats [2, N, PARTIALS, CO].

    The convolution is the only reader of the batch norm's output, and `grad` is a tile of that output's gradient,
    before the backward pass of the activation (SLOPE). `value` is the batch norm's input, and `table` [4, N, LC] has
    its mean, 1/deviation, scale and shift. The sums over rows are Σ dz and Σ dz·x̂ for the gradient dz of the
    activation's input and the normalised input x̂.

    ALL: all rows and columns are inside of the tensor, so that nothing has to be masked.
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
