"""Triton kernels for the layers next to images, which have very few channels on one side.

A product on tensor cores needs at least 16 columns. So these kernels combine all taps (positions of the K × K kernel)
and the few channels to one index, and read the side with many channels only once. N counts members (GANs); a place is a
pixel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ganherd.herd.lowering.kernels.convolution.conv_kernels import load_normed


@triton.jit
def add_shifted(
    p, bias, y, B, H, W, OH, OW, SIZE, BS, CO: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Finish a convolution: add the products p of each tap and each input place, shifted by their tap, and the bias.

    y[oy, ox, co] = Σ_tap p[tap, co, oy - PAD + ky, ox - PAD + kx], where (ky, kx) is the position of the tap. p is
    [N, B, K*K*CO, H, W], y is [N, B, OH, OW, CO]. SIZE is the number of output places of a member, BS the bias's stride
    of members.
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
def weight_gradient_from_few(
    x, g, out, sums, table,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr,
    LC: tl.constexpr,
    TILES: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, SUMS: tl.constexpr, NORM_INPUT: tl.constexpr,
    SLOPE: tl.constexpr, SWAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial weight gradients, out [N, SPLIT, K*K, CI, CO], of a convolution with very few input channels.

    x [N, B, H, W, CI] is the input, g [N, B, OH, OW, CO] the gradient of the output, and SPLIT the number of parts into
    which the places are divided. A program computes all taps at once, so that it reads g only once.

    SUMS: also store Σ g over places in sums [N, SPLIT, CO], the gradient of a bias.
    NORM_INPUT: apply a batch norm and an activation with this SLOPE to x on load; see `load_normed`.
    SWAP: store out as [N, SPLIT, K*K, CO, CI].
    """
    co = tl.program_id(0) * BO + tl.arange(0, BO)
    j = tl.arange(0, BI)
    tap = j // CI
    c = j % CI
    z = tl.program_id(1).to(tl.int64)
    n = z // SPLIT
    partial = (z % SPLIT).to(tl.int32)
    x += n * B * H * W * CI
    g += n * B * OH * OW * CO
    acc = tl.zeros((BI, BO), tl.float32)
    total = tl.zeros((BO,), tl.float32)
    for tile in range(TILES):
        m = (partial * TILES + tile) * BM + tl.arange(0, BM)
        ox = m % OW
        oy = (m // OW) % OH
        b = m // (OW * OH)
        known = b < B
        right = tl.load(g + m[:, None] * CO + co[None, :], mask=known[:, None] & (co < CO)[None, :], other=0.0)
        iy = (oy * STRIDE - PAD)[:, None] + (tap // K)[None, :]
        ix = (ox * STRIDE - PAD)[:, None] + (tap % K)[None, :]
        inside = known[:, None] & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W) & (tap < K * K)[None, :]
        place = ((b[:, None] * H + iy) * W + ix) * CI + c[None, :]
        left = load_normed(x, place, inside, table, n, tl.num_programs(1) // SPLIT, c, LC, NORM_INPUT, SLOPE)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
        if SUMS:
            total += tl.sum(right.to(tl.float32), 0)
    if SUMS:
        tl.store(sums + (n * SPLIT + partial) * CO + co, total, mask=co < CO)
    out += (n * SPLIT + partial) * (K * K * CI * CO)
    if SWAP:
        to = (tap * (CI * CO) + c)[:, None] + co[None, :] * CI
    else:
        to = j[:, None] * CO + co[None, :]
    tl.store(out + to, acc, mask=(tap < K * K)[:, None] & (co < CO)[None, :])


@triton.jit
def weight_gradient_to_few(
    x, g, out, table,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr,
    LC: tl.constexpr,
    TILES: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, NORM_INPUT: tl.constexpr, SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial weight gradients, out [N, SPLIT, K*K, CI, CO], at stride 1 with very few output channels.

    x [N, B, H, W, CI] is the input, g [N, B, OH, OW, CO] the gradient of the output, and SPLIT the number of parts into
    which the places are divided. A program computes all taps at once, so that it reads x only once.

    NORM_INPUT: apply a batch norm and an activation with this SLOPE to x on load; see `load_normed`.
    """
    ci = tl.program_id(0) * BI + tl.arange(0, BI)
    j = tl.arange(0, BJ)
    tap = j // CO
    co = j % CO
    z = tl.program_id(1).to(tl.int64)
    n = z // SPLIT
    partial = (z % SPLIT).to(tl.int32)
    x += n * B * H * W * CI
    g += n * B * OH * OW * CO
    acc = tl.zeros((BI, BJ), tl.float32)
    for tile in range(TILES):
        m = (partial * TILES + tile) * BM + tl.arange(0, BM)
        ix = m % W
        iy = (m // W) % H
        b = m // (W * H)
        known = b < B
        place = m[:, None] * CI + ci[None, :]
        mask = known[:, None] & (ci < CI)[None, :]
        left = load_normed(x, place, mask, table, n, tl.num_programs(1) // SPLIT, ci, LC, NORM_INPUT, SLOPE)
        oy = iy[:, None] + PAD - (tap // K)[None, :]
        ox = ix[:, None] + PAD - (tap % K)[None, :]
        inside = known[:, None] & (oy >= 0) & (oy < OH) & (ox >= 0) & (ox < OW) & (tap < K * K)[None, :]
        right = tl.load(g + ((b[:, None] * OH + oy) * OW + ox) * CO + co[None, :], mask=inside, other=0.0)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
    place = (((n * SPLIT + partial) * K * K + tap[None, :]) * CI + ci[:, None]) * CO + co[None, :]
    tl.store(out + place, acc, mask=(ci < CI)[:, None] & (tap < K * K)[None, :])
