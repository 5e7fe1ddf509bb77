"""The Triton kernels of `conv`: one that gathers, for forward passes and input gradients, and the weight gradients."""

from __future__ import annotations

import triton
import triton.language as tl

from ganherd.herd.lowering.kernels.random_bits import dropout_factor
from ganherd.herd.lowering.kernels.taps import channel_major


@triton.jit
def _normalised(value, line, n, N, c, LC, SLOPE: tl.constexpr):
    """What a batch norm and its activation make of value [rows, columns]; columns are numbered c, channels c % LC."""
    here = n * LC + c % LC
    value = (
        value.to(tl.float32) * tl.load(line + 2 * N * LC + here)[None, :] + tl.load(line + 3 * N * LC + here)[None, :]
    )
    return tl.where(value > 0, value, value * SLOPE)


@triton.jit(do_not_specialize=["CALL"])
def gather_kernel(
    x, w, bias, y, stats, line, before, keys,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, QH: tl.constexpr,
    QW: tl.constexpr, CO: tl.constexpr, WN, WT, WC, WO, BS, PARTS, LC: tl.constexpr, DC: tl.constexpr, CALL, P, SCALE,
    K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, FLIP: tl.constexpr,
    HAS_BIAS: tl.constexpr, FLAT: tl.constexpr, J: tl.constexpr, KB: tl.constexpr, LINED: tl.constexpr,
    SLOPE: tl.constexpr, OUT_SLOPE: tl.constexpr, DROPS: tl.constexpr, BACK: tl.constexpr, HAS_STATS: tl.constexpr,
    HAS_SUMS: tl.constexpr, PLANES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI] -> y [N, B, OH, OW, CO]; q runs over [B, QH, QW], J taps an axis.

    w is addressed by strides (member, tap, channel in, channel out), so that a gradient reads the same memory turned round.
    FLAT: taps and channels are one index, for inputs of very few channels.
    LINED: x is normalised and activated (SLOPE) as it is read; `line` [4, N, LC] is mean, 1/deviation, scale, shift.
    OUT_SLOPE, DROPS: the activation of y, and then its dropout, drawn as `_dropout` does; columns are numbered (place, channel),
    with DC channels. BACK: y is the gradient of these instead, which made `before` [N, B, OH, OW, CO].
    HAS_STATS: stats [3, N, PARTS, CO] get the number of rows that this program made, their mean and their squared deviations.
    HAS_SUMS: y is the gradient of what a batch norm (`line`, SLOPE) made of `before` [N, B, OH, OW, CO]; stats
    [2, N, PARTS, CO] get the sums that its backward pass needs. PLANES: y is [N, B, CO, OH, OW] instead.
    """
    n = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    if TRANSPOSED:  # the four parities of a tile, which read the same rows, run side by side
        py = (part // 2) % 2
        px = part % 2
        first_y = (py + PAD) % 2
        first_x = (px + PAD) % 2
        m = (part // 4) * BM + tl.arange(0, BM)
    else:
        py = 0
        px = 0
        first_y = 0
        first_x = 0
        m = part * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    qx = m % QW
    qy = (m // QW) % QH
    b = m // (QW * QH)
    known = b < B
    x += n * B * H * W * CI
    w += n * WN
    STEP: tl.constexpr = 1 if TRANSPOSED else STRIDE  # of the input from one q to the next
    if TRANSPOSED and K % 2 == 1 and not FLAT:  # of an odd number of taps a parity meets one more than the other
        across = (K - first_x + 1) // 2
        steps = (K - first_y + 1) // 2 * across * KB
    else:
        across = J
        steps = KB if FLAT else J * J * KB
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(steps):
        if FLAT:
            k = step * BK + tl.arange(0, BK)
            tap = k // CI
            c = k % CI
            used = k < J * J * CI
        else:
            tap = step // KB
            c = (step % KB) * BK + tl.arange(0, BK)
            used = c < CI
        if TRANSPOSED:
            ky = 2 * (tap // across) + first_y
            kx = 2 * (tap % across) + first_x
            dy = (py + PAD - ky) // 2  # the parity makes it even: the division is exact
            dx = (px + PAD - kx) // 2
        else:
            ky = tap // J
            kx = tap % J
            dy = ky - PAD
            dx = kx - PAD
        valid = used
        if TRANSPOSED and FLAT:  # an odd number of taps leaves one parity with fewer
            valid = used & (ky < K) & (kx < K)
        if FLAT:  # every column of the product has a tap of its own
            iy = qy[:, None] * STEP + dy[None, :]
            ix = qx[:, None] * STEP + dx[None, :]
        else:
            iy = (qy * STEP + dy)[:, None]
            ix = (qx * STEP + dx)[:, None]
        inside = known[:, None] & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        place = (b[:, None] * H + iy) * W + ix
        left = tl.load(x + place * CI + c[None, :], mask=inside & valid[None, :], other=0.0)
        if LINED:  # what lies outside is zero after the batch norm, not before it
            value = _normalised(left, line, n, tl.num_programs(2), c, LC, SLOPE)
            left = tl.where(inside & valid[None, :], value, 0.0).to(x.dtype.element_ty)
        number = ky * K + kx
        if FLIP:
            number = K * K - 1 - number
        row = number * WT + c * WC
        right = tl.load(w + row[:, None] + co[None, :] * WO, mask=valid[:, None] & (co < CO)[None, :], other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + n * BS + co, mask=co < CO, other=0.0).to(tl.float32)[None, :]
    if TRANSPOSED:
        oy = 2 * qy + py
        ox = 2 * qx + px
    else:
        oy = qy
        ox = qx
    y += n * B * OH * OW * CO
    place = (b * OH + oy) * OW + ox
    made = known & (oy < OH) & (ox < OW)
    kept = made[:, None] & (co < CO)[None, :]
    if HAS_SUMS or BACK:
        value = tl.load(before + n * B * OH * OW * CO + place[:, None] * CO + co[None, :], mask=kept, other=0.0)
    if OUT_SLOPE != 1.0:
        sign = value if BACK else acc
        acc = tl.where(sign > 0, acc, acc * OUT_SLOPE)
    if DROPS:
        size = OH * OW
        counter = (b[:, None] * DC + (co % DC)[None, :]) * (CO // DC * size)
        counter += (co // DC * size)[None, :] + (oy * OW + ox)[:, None]
        acc *= dropout_factor(tl.load(keys + n), CALL, counter, P, SCALE)
    if PLANES:
        size = OH * OW
        tl.store(
            y + (b * CO * size + oy * OW + ox)[:, None] + co[None, :] * size, acc.to(y.dtype.element_ty), mask=kept
        )
    else:
        tl.store(y + place[:, None] * CO + co[None, :], acc.to(y.dtype.element_ty), mask=kept)
    if HAS_STATS:
        count = tl.sum(made.to(tl.float32), 0)
        mean = tl.sum(tl.where(kept, acc, 0.0), 0) / tl.maximum(count, 1.0)
        apart = tl.where(kept, acc - mean[None, :], 0.0)
        here = stats + (n * PARTS + part) * CO + co
        block = tl.num_programs(2).to(tl.int64) * PARTS * CO
        tl.store(here, tl.zeros((BN,), tl.float32) + count, mask=co < CO)
        tl.store(here + block, mean, mask=co < CO)
        tl.store(here + 2 * block, tl.sum(apart * apart, 0), mask=co < CO)
    if HAS_SUMS:
        block = tl.num_programs(2).to(tl.int64) * LC
        channel = line + n * LC + co % LC
        value = value.to(tl.float32)
        grad = acc.to(y.dtype.element_ty).to(tl.float32)  # as the backward pass will read it
        above = value * tl.load(channel + 2 * block)[None, :] + tl.load(channel + 3 * block)[None, :] > 0
        grad = tl.where(kept, tl.where(above, grad, grad * SLOPE), 0.0)
        here = stats + (n * PARTS + part) * CO + co
        tl.store(here, tl.sum(grad, 0), mask=co < CO)
        grad *= (value - tl.load(channel)[None, :]) * tl.load(channel + block)[None, :]
        tl.store(here + tl.num_programs(2).to(tl.int64) * PARTS * CO, tl.sum(grad, 0), mask=co < CO)


@triton.jit
def add_shifted(
    p, bias, y, B, H, W, OH, OW, SIZE, BS, CO: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y[oy, ox, co] = Σ_tap p[tap, co, oy - PAD + ky, ox - PAD + kx]: a convolution whose products are already made.

    p [N, B, K*K*CO, H, W], y [N, B, OH, OW, CO]; SIZE places in a member.
    """
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < SIZE
    ox = at % OW
    oy = (at // OW) % OH
    b = at // (OW * OH)
    p += n * B * (K * K * CO) * H * W
    for co in tl.static_range(CO):
        acc = tl.zeros((BLOCK,), tl.float32)
        if HAS_BIAS:
            acc += tl.load(bias + n * BS + co).to(tl.float32)
        for tap in tl.static_range(K * K):
            iy = oy - PAD + tap // K
            ix = ox - PAD + tap % K
            inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            place = ((b * (K * K * CO) + tap * CO + co) * H + iy) * W + ix
            acc += tl.load(p + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + (n * SIZE + at) * CO + co, acc.to(y.dtype.element_ty), mask=known)


@triton.jit
def weight_gradient_kernel(
    x, g, out, sums, line,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr,
    LC: tl.constexpr,
    TILES: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, TWO: tl.constexpr, SUMS: tl.constexpr,
    LINED: tl.constexpr, SLOPE: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> out [N, SPLIT, K*K, CI, CO]; the parts are added afterwards, in order.

    TWO: two taps share what is read of g. sums [N, SPLIT, CO]: Σ g (SUMS 1; [N, SPLIT, CI], Σ x: SUMS 2) over its rows, the
    gradient of a bias, made by those programs that see each row once. LINED: x is normalised as it is read, as
    `gather_kernel` does. PLACES: CI is (place, channel) in x and (channel, place) in out.
    """
    across = tl.cdiv(CO, BO)
    ci = (tl.program_id(0) // across) * BI + tl.arange(0, BI)
    co = (tl.program_id(0) % across) * BO + tl.arange(0, BO)
    tap = tl.program_id(1) * 2 if TWO else tl.program_id(1)
    z = tl.program_id(2).to(tl.int64)
    n = z // SPLIT
    part = (z % SPLIT).to(tl.int32)
    x += n * B * H * W * CI
    g += n * B * OH * OW * CO
    acc = tl.zeros((BI, BO), tl.float32)
    other = tl.zeros((BI, BO), tl.float32)
    total = tl.zeros((BI if SUMS == 2 else BO,), tl.float32)
    once = (tap == 0) & ((tl.program_id(0) % across if SUMS == 2 else tl.program_id(0) // across) == 0)
    for tile in range(TILES):
        m = (part * TILES + tile) * BM + tl.arange(0, BM)
        ox = m % OW
        oy = (m // OW) % OH
        b = m // (OW * OH)
        known = b < B
        right = tl.load(g + m[:, None] * CO + co[None, :], mask=known[:, None] & (co < CO)[None, :], other=0.0)
        iy = oy * STRIDE - PAD + tap // K
        ix = ox * STRIDE - PAD + tap % K
        inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        place = (b * H + iy) * W + ix
        left = tl.load(x + place[:, None] * CI + ci[None, :], mask=inside[:, None] & (ci < CI)[None, :], other=0.0)
        if LINED:
            value = _normalised(left, line, n, tl.num_programs(2) // SPLIT, ci, LC, SLOPE)
            left = tl.where(inside[:, None] & (ci < CI)[None, :], value, 0.0).to(x.dtype.element_ty)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
        if TWO:
            iy = oy * STRIDE - PAD + (tap + 1) // K
            ix = ox * STRIDE - PAD + (tap + 1) % K
            inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            place = (b * H + iy) * W + ix
            left = tl.load(x + place[:, None] * CI + ci[None, :], mask=inside[:, None] & (ci < CI)[None, :], other=0.0)
            if LINED:
                value = _normalised(left, line, n, tl.num_programs(2) // SPLIT, ci, LC, SLOPE)
                left = tl.where(inside[:, None] & (ci < CI)[None, :], value, 0.0).to(x.dtype.element_ty)
            other = tl.dot(tl.trans(left), right, other, input_precision=PRECISION)
        if SUMS != 0:  # noqa: SIM102 (known when it is compiled; the next one when it runs)
            if once:
                total += tl.sum((left if SUMS == 2 else right).to(tl.float32), 0)
    if SUMS == 1:
        tl.store(sums + (n * SPLIT + part) * CO + co, total, mask=(co < CO) & once)
    if SUMS == 2:
        tl.store(sums + (n * SPLIT + part) * CI + ci, total, mask=(ci < CI) & once)
    out += ((n * SPLIT + part) * K * K + tap) * CI * CO
    here = channel_major(ci, CI, PLACES)[:, None] * CO + co[None, :]
    kept = (ci < CI)[:, None] & (co < CO)[None, :]
    tl.store(out + here, acc, mask=kept)
    if TWO:
        tl.store(out + CI * CO + here, other, mask=kept & (tap + 1 < K * K))


@triton.jit
def weight_gradient_few(
    x, g, out, line,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr,
    LC: tl.constexpr,
    TILES: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, LINED: tl.constexpr, SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same at stride 1 for very few channels out: all taps at once, so that x is read once."""
    ci = tl.program_id(0) * BI + tl.arange(0, BI)
    j = tl.arange(0, BJ)
    tap = j // CO
    co = j % CO
    z = tl.program_id(1).to(tl.int64)
    n = z // SPLIT
    part = (z % SPLIT).to(tl.int32)
    x += n * B * H * W * CI
    g += n * B * OH * OW * CO
    acc = tl.zeros((BI, BJ), tl.float32)
    for tile in range(TILES):
        m = (part * TILES + tile) * BM + tl.arange(0, BM)
        ix = m % W
        iy = (m // W) % H
        b = m // (W * H)
        known = b < B
        left = tl.load(x + m[:, None] * CI + ci[None, :], mask=known[:, None] & (ci < CI)[None, :], other=0.0)
        if LINED:
            value = _normalised(left, line, n, tl.num_programs(1) // SPLIT, ci, LC, SLOPE)
            left = tl.where(known[:, None] & (ci < CI)[None, :], value, 0.0).to(x.dtype.element_ty)
        oy = iy[:, None] + PAD - (tap // K)[None, :]
        ox = ix[:, None] + PAD - (tap % K)[None, :]
        inside = known[:, None] & (oy >= 0) & (oy < OH) & (ox >= 0) & (ox < OW) & (tap < K * K)[None, :]
        right = tl.load(g + ((b[:, None] * OH + oy) * OW + ox) * CO + co[None, :], mask=inside, other=0.0)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
    place = (((n * SPLIT + part) * K * K + tap[None, :]) * CI + ci[:, None]) * CO + co[None, :]
    tl.store(out + place, acc, mask=(ci < CI)[:, None] & (tap < K * K)[None, :])
