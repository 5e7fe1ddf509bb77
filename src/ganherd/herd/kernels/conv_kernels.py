"""The Triton kernels of `conv`: one that gathers, for forward passes and input gradients, and the weight gradients."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    x, w, bias, y, stats,
    B, H, W, CI, OH, OW, QH, QW, CO, WN, WT, WC, WO, BS, PARTS,
    K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, FLIP: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_STATS: tl.constexpr, FLAT: tl.constexpr, J: tl.constexpr, KB: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI] -> y [N, B, OH, OW, CO]; q runs over [B, QH, QW], J taps an axis.

    w is addressed by strides (member, tap, channel in, channel out), so that a gradient reads the same memory turned round.
    FLAT: taps and channels are one index, for inputs of very few channels.
    stats [3, N, PARTS, CO]: how many rows this program made, their mean and their squared deviations, for a batch norm.
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
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(KB if FLAT else J * J * KB):
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
            ky = 2 * (tap // J) + first_y
            kx = 2 * (tap % J) + first_x
            dy = (py + PAD - ky) // 2  # the parity makes it even: the division is exact
            dx = (px + PAD - kx) // 2
        else:
            ky = tap // J
            kx = tap % J
            dy = ky - PAD
            dx = kx - PAD
        valid = used
        if TRANSPOSED:  # an odd number of taps leaves one parity with fewer
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


@triton.jit
def add_shifted(
    p, bias, y, B, H, W, OH, OW, SIZE, BS, CO: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y[oy, ox, co] = Σ_tap p[oy - PAD + ky, ox - PAD + kx, tap, co]: a convolution whose products are already made."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < SIZE
    co = at % CO
    ox = (at // CO) % OW
    oy = (at // (CO * OW)) % OH
    b = at // (CO * OW * OH)
    acc = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias + n * BS + co).to(tl.float32)
    for tap in tl.static_range(K * K):
        iy = oy - PAD + tap // K
        ix = ox - PAD + tap % K
        inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        place = (((n * B + b) * H + iy) * W + ix) * (K * K * CO) + tap * CO + co
        acc += tl.load(p + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + n * SIZE + at, acc.to(y.dtype.element_ty), mask=known)


@triton.jit
def weight_gradient_kernel(
    x, g, out, sums,
    B, H, W, CI, OH, OW, CO,
    TILES: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, TWO: tl.constexpr, HAS_SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> out [N, SPLIT, K*K, CI, CO]; the parts are added afterwards, in order.

    TWO: two taps share what is read of g. sums [N, SPLIT, CO]: Σ g over its rows, the gradient of a bias, made by those
    programs that see each row once.
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
    total = tl.zeros((BO,), tl.float32)
    once = (tap == 0) & (tl.program_id(0) // across == 0)
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
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
        if TWO:
            iy = oy * STRIDE - PAD + (tap + 1) // K
            ix = ox * STRIDE - PAD + (tap + 1) % K
            inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            place = (b * H + iy) * W + ix
            left = tl.load(x + place[:, None] * CI + ci[None, :], mask=inside[:, None] & (ci < CI)[None, :], other=0.0)
            other = tl.dot(tl.trans(left), right, other, input_precision=PRECISION)
        if HAS_SUMS:  # noqa: SIM102 (known when it is compiled; the next one when it runs)
            if once:
                total += tl.sum(right.to(tl.float32), 0)
    if HAS_SUMS:
        tl.store(sums + (n * SPLIT + part) * CO + co, total, mask=(co < CO) & once)
    out += ((n * SPLIT + part) * K * K + tap) * CI * CO
    here = ci[:, None] * CO + co[None, :]
    kept = (ci < CI)[:, None] & (co < CO)[None, :]
    tl.store(out + here, acc, mask=kept)
    if TWO:
        tl.store(out + CI * CO + here, other, mask=kept & (tap + 1 < K * K))


@triton.jit
def weight_gradient_few(
    x, g, out,
    B, H, W, CI, OH, OW, CO,
    TILES: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, PRECISION: tl.constexpr,
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
        oy = iy[:, None] + PAD - (tap // K)[None, :]
        ox = ix[:, None] + PAD - (tap % K)[None, :]
        inside = known[:, None] & (oy >= 0) & (oy < OH) & (ox >= 0) & (ox < OW) & (tap < K * K)[None, :]
        right = tl.load(g + ((b[:, None] * OH + oy) * OW + ox) * CO + co[None, :], mask=inside, other=0.0)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
    place = (((n * SPLIT + part) * K * K + tap[None, :]) * CI + ci[:, None]) * CO + co[None, :]
    tl.store(out + place, acc, mask=(ci < CI)[:, None] & (tap < K * K)[None, :])
