"""A Triton kernel for convolutions that loads and stores boxes, which a GPU with tensor memory access copies by itself.

The rows of a tile are a patch: a rectangle of places (pixels) in each of several images. A tap is one position of the K
× K kernel. The input places that a patch needs for one tap form a box of the same size, shifted by the tap. The GPU
reads zeros outside of an image, which is the padding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ganherd.herd.lowering.kernels.convolution.epilogue import activate, store_moments, store_norm_sums


@triton.jit
def _place(image, y, x, py, px, c, C: tl.constexpr, STEP: tl.constexpr):
    """Return the index of a box's first number in a descriptor of `patches.image_boxes`, for places STEP apart.

    For STEP 2, (y, x) count every other place, and (py, px) in {0, 1} select the even or the odd ones.
    """
    if STEP == 2:
        return [image, y, py, x, px * C + c]
    else:  # Triton needs both branches to return
        return [image, y, x, c]


@triton.jit(do_not_specialize=["CALL"])
def gather_patch_kernel(
    x, w, y, producer, bias, stats, table, keys,
    B, CI: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, QH: tl.constexpr, QW: tl.constexpr, CO: tl.constexpr,
    BS, PARTIALS, LC: tl.constexpr, DC: tl.constexpr, CALL, P, SCALE,
    K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, FLIP: tl.constexpr,
    OF_GRADIENT: tl.constexpr, HAS_BIAS: tl.constexpr, SLOPE: tl.constexpr, OUT_SLOPE: tl.constexpr,
    DROPS: tl.constexpr, UNDO: tl.constexpr, HAS_STATS: tl.constexpr, HAS_SUMS: tl.constexpr,
    IMAGES: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the convolution of `gather_kernel` with tiles whose rows are patches of IMAGES images and PH × PW places.

    x, y and `producer` are descriptors from `patches.image_boxes`: for stride 2, x is described with step 2, and for a
    transposed convolution, y and `producer` are. w is a descriptor of boxes [BK, BN] of the taps [N*taps*CI, CO] or, if
    OF_GRADIENT, of boxes [BN, BK] of the taps [N*taps*CO, CI]. All other arguments are those of `gather_kernel`.

    The product is computed transposed, with the places as columns: Triton (3.6) can use a reshaped box directly from
    shared memory only as the second factor, and would copy it to registers as the first one.
    """
    BM: tl.constexpr = IMAGES * PH * PW
    DOWN: tl.constexpr = (QH + PH - 1) // PH
    ACROSS: tl.constexpr = (QW + PW - 1) // PW
    KB: tl.constexpr = CI // BK
    n = tl.program_id(2)
    partial = tl.program_id(0)
    if TRANSPOSED:  # the four parities of a patch run next to each other, because they read the same boxes
        py = (partial // 2) % 2
        px = partial % 2
        first_y = (py + PAD) % 2
        first_x = (px + PAD) % 2
        patch = partial // 4
    else:
        py = 0
        px = 0
        first_y = 0
        first_x = 0
        patch = partial
    if not TRANSPOSED:
        across = K
        steps = K * K * KB
    elif K % 2 == 0:
        across = K // 2
        steps = (K // 2) * (K // 2) * KB
    else:  # one parity has one tap more than the other
        across = (K - first_x + 1) // 2
        steps = (K - first_y + 1) // 2 * across * KB
    x0 = patch % ACROSS * PW
    y0 = patch // ACROSS % DOWN * PH
    b0 = patch // (ACROSS * DOWN) * IMAGES
    co0 = tl.program_id(1) * BN
    image = n * B + b0
    acc = tl.zeros((BN, BM), tl.float32)
    for step in range(steps):
        tap = step // KB
        c = step % KB * BK
        if TRANSPOSED:
            ky = 2 * (tap // across) + first_y
            kx = 2 * (tap % across) + first_x
            dy = (py + PAD - ky) // 2  # exact, because the parity makes the dividend even
            dx = (px + PAD - kx) // 2
        else:
            ky = tap // across
            kx = tap % across
            dy = ky - PAD
            dx = kx - PAD
        if TRANSPOSED or STRIDE == 1:
            rows = x.load(_place(image, y0 + dy, x0 + dx, 0, 0, c, CI, 1))
        else:
            rows = x.load(_place(image, y0 + (dy >> 1), x0 + (dx >> 1), dy & 1, dx & 1, c, CI, 2))
        number = ky * K + kx
        if FLIP:
            number = K * K - 1 - number
        number += n * (K * K)
        if OF_GRADIENT:
            weights = w.load([number * CO + co0, c])
        else:
            weights = tl.trans(w.load([number * CI + c, co0]))
        acc = tl.dot(weights, tl.trans(tl.reshape(rows, (BM, BK))), acc)
    acc = tl.trans(acc)
    m = tl.arange(0, BM)
    qx = x0 + m % PW
    qy = y0 + m // PW % PH
    b = b0 + m // (PW * PH)
    SPACING: tl.constexpr = 2 if TRANSPOSED else 1
    oy = SPACING * qy + py
    ox = SPACING * qx + px
    co = co0 + tl.arange(0, BN)
    known = (oy < OH) & (ox < OW)
    ALL: tl.constexpr = QH % PH == 0 and QW % PW == 0  # then no row has to be masked
    here = _place(image, y0, x0, py, px, co0, CO, SPACING)
    member = n.to(tl.int64)
    value = acc
    if HAS_SUMS or UNDO:
        value = tl.reshape(producer.load(here), (BM, BN))
    acc = activate(
        acc, value, bias, keys, member, b, oy, ox, co, OH, OW, CO, BS, DC, CALL, P, SCALE, HAS_BIAS, OUT_SLOPE, DROPS, UNDO
    )  # fmt: skip
    result = acc.to(y.dtype)
    y.store(here, tl.reshape(result, y.block_shape))
    if HAS_STATS:
        store_moments(acc, stats, member, partial, co, known, CO, PARTIALS, BM, BN, ALL)
    if HAS_SUMS:  # of the gradient as the backward pass will read it
        result = result.to(tl.float32)
        store_norm_sums(result, value, stats, table, member, partial, co, known, CO, PARTIALS, LC, SLOPE, ALL)
