"""Triton kernels for convolutions: one for forward passes and input gradients, and one for weight gradients.

Tensors have channels last, `[N, B, H, W, C]`: N members (GANs), B samples. A place is a pixel; a tap is one position of
the K × K kernel. H and W are the input's height and width, OH and OW the output's, CI and CO the input and output
channels. A tile of a matrix product has BM rows (places) and BN columns (channels), and BK numbers of the summed index
are loaded at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ganherd.herd.lowering.kernels.convolution.epilogue import activate, store_moments, store_norm_sums
from ganherd.herd.lowering.kernels.convolution.taps import channel_major


@triton.jit
def load_normed(x, place, mask, table, n, N, c, LC, NORM_INPUT: tl.constexpr, SLOPE: tl.constexpr):
    """Return the numbers of x at offsets `place` [rows, columns], 0 outside of the mask.

    NORM_INPUT: return act(x · scale + shift) inside of the mask, where act is a (leaky) ReLU with this SLOPE below 0.
        This is a batch norm before the convolution, which has left the work to its reader. Scale and shift are rows 2
        and 3 of `table` [4, N, LC] (mean, 1/deviation, scale, shift); column c belongs to channel c % LC of member n.
    """
    value = tl.load(x + place, mask=mask, other=0.0)
    if NORM_INPUT:
        here = n * LC + c % LC
        scale = tl.load(table + 2 * N * LC + here)[None, :]
        normed = value.to(tl.float32) * scale + tl.load(table + 3 * N * LC + here)[None, :]
        value = tl.where(mask, tl.where(normed > 0, normed, normed * SLOPE), 0.0).to(x.dtype.element_ty)
    return value


@triton.jit(do_not_specialize=["CALL"])
def gather_kernel(
    x, w, bias, y, stats, table, producer, keys,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, QH: tl.constexpr,
    QW: tl.constexpr, CO: tl.constexpr, WN, WT, WC, WO, BS, PARTIALS, LC: tl.constexpr, DC: tl.constexpr, CALL, P, SCALE,
    K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, FLIP: tl.constexpr,
    HAS_BIAS: tl.constexpr, FLAT: tl.constexpr, J: tl.constexpr, KB: tl.constexpr, NORM_INPUT: tl.constexpr,
    SLOPE: tl.constexpr, OUT_SLOPE: tl.constexpr, DROPS: tl.constexpr, UNDO: tl.constexpr, HAS_STATS: tl.constexpr,
    HAS_SUMS: tl.constexpr, PLANES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Convolve x [N, B, H, W, CI] to y [N, B, OH, OW, CO].

    A program computes BM places and BN channels of the output of a member. The places are numbered by (b, qy, qx) of
    [B, QH, QW]: all places of the output or, if TRANSPOSED, those of one parity (even or odd row, even or odd column).
    J is the number of taps along an axis that one place reads: K or, if TRANSPOSED, half of it.

    w has the strides WN, WT, WC and WO along members, taps, input channels and output channels, so that an input
    gradient can read the taps of the forward pass with the channels exchanged.

    TRANSPOSED: compute a transposed convolution of stride 2.
    FLIP: use the taps in reverse order.
    FLAT: sum over one index (tap, input channel), for inputs with very few channels; otherwise KB is the number of
        steps of BK channels for each tap.
    NORM_INPUT: apply a batch norm and an activation with this SLOPE to x on load; see `load_normed`.
    PLANES: store y as [N, B, CO, OH, OW].
    All other options are those of functions in `epilogue`: `activate`, `store_moments` (if HAS_STATS) and
    `store_norm_sums` (if HAS_SUMS), which store in `stats`. For UNDO and HAS_SUMS, `producer` has their argument
    `value`.
    """
    n = tl.program_id(2).to(tl.int64)
    partial = tl.program_id(0)
    if TRANSPOSED:  # the four parities of a tile run next to each other, because they read the same rows
        py = (partial // 2) % 2
        px = partial % 2
        first_y = (py + PAD) % 2
        first_x = (px + PAD) % 2
        m = (partial // 4) * BM + tl.arange(0, BM)
    else:
        py = 0
        px = 0
        first_y = 0
        first_x = 0
        m = partial * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    qx = m % QW
    qy = (m // QW) % QH
    b = m // (QW * QH)
    known = b < B
    x += n * B * H * W * CI
    w += n * WN
    STEP: tl.constexpr = 1 if TRANSPOSED else STRIDE  # distance of the input places that neighbouring q read
    if TRANSPOSED and K % 2 == 1 and not FLAT:  # with an odd number of taps, one parity has one tap more than the other
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
            dy = (py + PAD - ky) // 2  # exact, because the parity makes the dividend even
            dx = (px + PAD - kx) // 2
        else:
            ky = tap // J
            kx = tap % J
            dy = ky - PAD
            dx = kx - PAD
        valid = used
        if TRANSPOSED and FLAT:  # with an odd number of taps, one parity has fewer
            valid = used & (ky < K) & (kx < K)
        if FLAT:  # each column of the product belongs to another tap
            iy = qy[:, None] * STEP + dy[None, :]
            ix = qx[:, None] * STEP + dx[None, :]
        else:
            iy = (qy * STEP + dy)[:, None]
            ix = (qx * STEP + dx)[:, None]
        inside = known[:, None] & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        place = (b[:, None] * H + iy) * W + ix
        mask = inside & valid[None, :]
        left = load_normed(x, place * CI + c[None, :], mask, table, n, tl.num_programs(2), c, LC, NORM_INPUT, SLOPE)
        number = ky * K + kx
        if FLIP:
            number = K * K - 1 - number
        row = number * WT + c * WC
        right = tl.load(w + row[:, None] + co[None, :] * WO, mask=valid[:, None] & (co < CO)[None, :], other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if TRANSPOSED:
        oy = 2 * qy + py
        ox = 2 * qx + px
    else:
        oy = qy
        ox = qx
    base = n * B * OH * OW * CO
    place = (b * OH + oy) * OW + ox
    known = known & (oy < OH) & (ox < OW)
    mask = known[:, None] & (co < CO)[None, :]
    value = acc
    if HAS_SUMS or UNDO:
        value = tl.load(producer + base + place[:, None] * CO + co[None, :], mask=mask, other=0.0)
    acc = activate(
        acc, value, bias, keys, n, b, oy, ox, co, OH, OW, CO, BS, DC, CALL, P, SCALE, HAS_BIAS, OUT_SLOPE, DROPS, UNDO
    )  # fmt: skip
    result = acc.to(y.dtype.element_ty)
    if PLANES:
        size = OH * OW
        here = (b * CO * size + oy * OW + ox)[:, None] + co[None, :] * size
        tl.store(y + base + here, result, mask=mask)
    else:
        tl.store(y + base + place[:, None] * CO + co[None, :], result, mask=mask)
    if HAS_STATS:
        store_moments(acc, stats, n, partial, co, known, CO, PARTIALS, BM, BN, False)
    if HAS_SUMS:  # of the gradient as the backward pass will read it
        result = result.to(tl.float32)
        store_norm_sums(result, value, stats, table, n, partial, co, known, CO, PARTIALS, LC, SLOPE, False)


@triton.jit
def weight_gradient_kernel(
    x, g, out, sums, table,
    B, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr,
    LC: tl.constexpr,
    TILES: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, TWO: tl.constexpr, SUMS: tl.constexpr,
    NORM_INPUT: tl.constexpr, SLOPE: tl.constexpr, PLACES: tl.constexpr, SWAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute partial weight gradients, out [N, SPLIT, K*K, CI, CO], from an input x and the gradient g of an output.

    x is [N, B, H, W, CI], g is [N, B, OH, OW, CO]. The B · OH · OW places of g, the rows of the product, are divided
    into SPLIT parts of TILES tiles of BM rows. A program computes BI × BO channels of one tap of one part.

    TWO: a program computes two taps, so that it loads g only once for both.
    SUMS: 1: also store Σ g over rows in sums [N, SPLIT, CO]. 2: also store Σ x in sums [N, SPLIT, CI]. This is the
        gradient of a bias. Only the programs of the first tap and the first block of the other channels do so, so that
        each row counts once.
    NORM_INPUT: apply a batch norm and an activation with this SLOPE to x on load; see `load_normed`.
    PLACES: if more than 1, the index CI runs over (place, channel) in x and over (channel, place) in out.
    SWAP: store out as [N, SPLIT, K*K, CO, CI].
    """
    across = tl.cdiv(CO, BO)
    ci = (tl.program_id(0) // across) * BI + tl.arange(0, BI)
    co = (tl.program_id(0) % across) * BO + tl.arange(0, BO)
    tap = tl.program_id(1) * 2 if TWO else tl.program_id(1)
    z = tl.program_id(2).to(tl.int64)
    n = z // SPLIT
    partial = (z % SPLIT).to(tl.int32)
    x += n * B * H * W * CI
    g += n * B * OH * OW * CO
    acc = tl.zeros((BI, BO), tl.float32)
    other = tl.zeros((BI, BO), tl.float32)
    total = tl.zeros((BI if SUMS == 2 else BO,), tl.float32)
    once = (tap == 0) & ((tl.program_id(0) % across if SUMS == 2 else tl.program_id(0) // across) == 0)
    for tile in range(TILES):
        m = (partial * TILES + tile) * BM + tl.arange(0, BM)
        ox = m % OW
        oy = (m // OW) % OH
        b = m // (OW * OH)
        known = b < B
        right = tl.load(g + m[:, None] * CO + co[None, :], mask=known[:, None] & (co < CO)[None, :], other=0.0)
        iy = oy * STRIDE - PAD + tap // K
        ix = ox * STRIDE - PAD + tap % K
        inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        place = ((b * H + iy) * W + ix)[:, None] * CI + ci[None, :]
        mask = inside[:, None] & (ci < CI)[None, :]
        left = load_normed(x, place, mask, table, n, tl.num_programs(2) // SPLIT, ci, LC, NORM_INPUT, SLOPE)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
        if TWO:
            iy = oy * STRIDE - PAD + (tap + 1) // K
            ix = ox * STRIDE - PAD + (tap + 1) % K
            inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            place = ((b * H + iy) * W + ix)[:, None] * CI + ci[None, :]
            mask = inside[:, None] & (ci < CI)[None, :]
            left = load_normed(x, place, mask, table, n, tl.num_programs(2) // SPLIT, ci, LC, NORM_INPUT, SLOPE)
            other = tl.dot(tl.trans(left), right, other, input_precision=PRECISION)
        if SUMS != 0:  # noqa: SIM102 (this condition is known at compile time, the next one at run time)
            if once:
                total += tl.sum((left if SUMS == 2 else right).to(tl.float32), 0)
    if SUMS == 1:
        tl.store(sums + (n * SPLIT + partial) * CO + co, total, mask=(co < CO) & once)
    if SUMS == 2:
        tl.store(sums + (n * SPLIT + partial) * CI + ci, total, mask=(ci < CI) & once)
    out += ((n * SPLIT + partial) * K * K + tap) * CI * CO
    if SWAP:
        here = ci[:, None] + co[None, :] * CI
    else:
        here = channel_major(ci, CI, PLACES)[:, None] * CO + co[None, :]
    mask = (ci < CI)[:, None] & (co < CO)[None, :]
    tl.store(out + here, acc, mask=mask)
    if TWO:
        tl.store(out + CI * CO + here, other, mask=mask & (tap + 1 < K * K))
