"""Convolutions with a weight for each member on `[N, B, H, W, C]`, as implicit matrix products that never write columns.

One kernel gathers: `out[q] = Σ_tap in[place(q, tap)] · w[tap]`. It is the forward pass of a convolution, and in its
transposed form, one parity of the output at a time, the forward pass of a stride-2 transposed convolution; each is the
other's input gradient. A second kernel is the weight gradient of both. Layers with very few channels (images) have
variants that read their large side only once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.kernels.norm import column_sums


@triton.jit
def _gather(
    x, w, bias, y,
    B, H, W, CI, OH, OW, QH, QW, CO, WN, WT, WC, WO, BS,
    K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, FLIP: tl.constexpr,
    HAS_BIAS: tl.constexpr, FLAT: tl.constexpr, J: tl.constexpr, KB: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI] -> y [N, B, OH, OW, CO]; q runs over [B, QH, QW], J taps an axis.

    w is addressed by strides (member, tap, channel in, channel out), so that a gradient reads the same memory turned round.
    FLAT: taps and channels are one index, for inputs of very few channels.
    """
    z = tl.program_id(2).to(tl.int64)
    if TRANSPOSED:
        n = z // 4
        py = ((z // 2) % 2).to(tl.int32)
        px = (z % 2).to(tl.int32)
        first_y = (py + PAD) % 2
        first_x = (px + PAD) % 2
    else:
        n = z
        py = 0
        px = 0
        first_y = 0
        first_x = 0
    m = tl.program_id(0) * BM + tl.arange(0, BM)
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
    kept = (known & (oy < OH) & (ox < OW))[:, None] & (co < CO)[None, :]
    tl.store(y + place[:, None] * CO + co[None, :], acc.to(y.dtype.element_ty), mask=kept)


@triton.jit
def _add_shifted(
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
def _weight_gradient(
    x, g, out,
    B, H, W, CI, OH, OW, CO,
    TILES: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> out [N, SPLIT, K*K, CI, CO]; the parts are added afterwards, in order."""
    across = tl.cdiv(CO, BO)
    ci = (tl.program_id(0) // across) * BI + tl.arange(0, BI)
    co = (tl.program_id(0) % across) * BO + tl.arange(0, BO)
    tap = tl.program_id(1)
    ky = tap // K
    kx = tap % K
    z = tl.program_id(2).to(tl.int64)
    n = z // SPLIT
    part = (z % SPLIT).to(tl.int32)
    x += n * B * H * W * CI
    g += n * B * OH * OW * CO
    acc = tl.zeros((BI, BO), tl.float32)
    for tile in range(TILES):
        m = (part * TILES + tile) * BM + tl.arange(0, BM)
        ox = m % OW
        oy = (m // OW) % OH
        b = m // (OW * OH)
        iy = oy * STRIDE - PAD + ky
        ix = ox * STRIDE - PAD + kx
        known = b < B
        inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
        place = (b * H + iy) * W + ix
        left = tl.load(x + place[:, None] * CI + ci[None, :], mask=inside[:, None] & (ci < CI)[None, :], other=0.0)
        right = tl.load(g + m[:, None] * CO + co[None, :], mask=known[:, None] & (co < CO)[None, :], other=0.0)
        acc = tl.dot(tl.trans(left), right, acc, input_precision=PRECISION)
    out += ((n * SPLIT + part) * K * K + tap) * CI * CO
    tl.store(out + ci[:, None] * CO + co[None, :], acc, mask=(ci < CI)[:, None] & (co < CO)[None, :])


@triton.jit
def _weight_gradient_few(
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


# -- launches -------------------------------------------------------------------------------------------------------


def _precision(x: Tensor, tf32: bool) -> str:
    return "tf32" if x.dtype == torch.float32 and tf32 else "ieee"


def _power(value: int, low: int, high: int) -> int:
    """The power of two from `low` to `high` that covers the value best."""
    return max(low, min(high, triton.next_power_of_2(value)))


def gather(
    x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, stride: int, pad: int, transposed: bool,
    tf32: bool, turned: bool = False, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """x [N, B, H, W, CI] contiguous, w [N, k*k, CI, CO] contiguous -> [N, B, *size, CO].

    `turned`: w is [N, k*k, CO, CI], as the pass has it whose gradient this is; at stride 1 its taps are reversed too.
    """
    n, b, h, wd, ci = x.shape
    co = w.shape[2] if turned else w.shape[3]
    oh, ow = size
    qh, qw = ((oh + 1) // 2, (ow + 1) // 2) if transposed else (oh, ow)
    y = torch.empty(n, b, oh, ow, co, dtype=dtype or x.dtype, device=x.device)
    taps = (k + 1) // 2 if transposed else k  # along an axis: a parity of the output meets every other tap
    flat = ci < 16
    contracted = taps * taps * ci if flat else ci
    bk = _power(contracted, 16, 64 if x.dtype != torch.float32 else 32)
    bn = _power(co, 16, 128)
    bm = 128 if b * qh * qw * n >= 128 * 132 else 64  # smaller tiles where there would be too few to fill a GPU
    grid = (triton.cdiv(b * qh * qw, bm), triton.cdiv(co, bn), n * (4 if transposed else 1))
    per_tap = w.shape[2] * w.shape[3]
    _gather[grid](
        x, w, x if bias is None else bias, y, b, h, wd, ci, oh, ow, qh, qw, co,
        k * k * per_tap, per_tap, *((1, w.shape[3]) if turned else (w.shape[3], 1)), 0 if bias is None else bias.stride(0),
        K=k, STRIDE=stride, PAD=pad, TRANSPOSED=transposed, FLIP=turned and not transposed and stride == 1,
        HAS_BIAS=bias is not None, FLAT=flat, J=taps, KB=triton.cdiv(contracted, bk),
        BM=bm, BN=bn, BK=bk, PRECISION=_precision(x, tf32),
        num_warps=8 if transposed and bn >= 128 else 4, num_stages=3,
    )  # fmt: skip
    return y


def gather_few(
    x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, pad: int, tf32: bool
) -> Tensor:
    """`gather` at stride 1 for very few channels out: one product for all taps, then the taps are added where they belong."""
    n, b, h, wd, ci = x.shape
    co = w.shape[3]
    together = w.permute(0, 2, 1, 3).reshape(n, 1, ci, k * k * co).contiguous()
    products = gather(x, together, None, (h, wd), 1, 1, 0, False, tf32, dtype=torch.float32)
    y = torch.empty(n, b, *size, co, dtype=x.dtype, device=x.device)
    count = y[0].numel()
    _add_shifted[(triton.cdiv(count, 1024), n)](
        products, x if bias is None else bias, y, b, h, wd, size[0], size[1], count, 0 if bias is None else bias.stride(0),
        CO=co, K=k, PAD=pad, HAS_BIAS=bias is not None, BLOCK=1024,
    )  # fmt: skip
    return y


def weight_gradient(x: Tensor, g: Tensor, k: int, stride: int, pad: int, tf32: bool) -> Tensor:
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> float32 [N, k*k, CI, CO]."""
    n, b, h, wd, ci = x.shape
    _, _, oh, ow, co = g.shape
    few = stride == 1 and k > 1 and k * k * co <= 64
    bi, bo = _power(ci, 16, 128), _power(k * k * co if few else co, 16, 128)
    bm = 64 if x.dtype != torch.float32 else 32
    tiles = triton.cdiv(b * (h * wd if few else oh * ow), bm)
    blocks = triton.cdiv(ci, bi) * n * (1 if few else triton.cdiv(co, bo) * k * k)
    split = 1  # more parts where there are too few blocks to fill a GPU
    while blocks * split < 264 and tiles // (2 * split) >= 8:
        split *= 2
    out = torch.empty(n, split, k * k, ci, co, dtype=torch.float32, device=x.device)
    sizes = (b, h, wd, ci, oh, ow, co)
    how = {"TILES": triton.cdiv(tiles, split), "K": k, "PAD": pad, "SPLIT": split, "BM": bm, "BI": bi}
    run = {"PRECISION": _precision(x, tf32), "num_warps": 8 if bi * bo >= 128 * 128 else 4, "num_stages": 3}
    if few:
        _weight_gradient_few[(triton.cdiv(ci, bi), n * split)](x, g, out, *sizes, **how, BJ=bo, **run)
    else:
        grid = (triton.cdiv(ci, bi) * triton.cdiv(co, bo), k * k, n * split)
        _weight_gradient[grid](x, g, out, *sizes, **how, STRIDE=stride, BO=bo, **run)
    return out[:, 0] if split == 1 else out.sum(1)


class MemberConv(torch.autograd.Function):
    """A convolution, or a stride-2 transposed one, of every member with its own weight; differentiable once.

    x [N, B, H, W, CI] contiguous in the dtype of the computation; w [N, k*k, CI, CO] float32 with any strides;
    bias [N, CO] or None. `still`: a batch norm follows and takes the bias away again, so its gradient is zero.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, stride: int, pad: int,
        transposed: bool, tf32: bool, still: bool = False,
    ) -> Tensor:  # fmt: skip
        if bias is not None and bias.stride(1) != 1:
            bias = bias.contiguous()
        taps = torch.empty(w.shape, dtype=x.dtype, device=w.device).copy_(w)  # turned and cast in one pass
        ctx.save_for_backward(x, taps)
        ctx.how = (k, stride, pad, transposed, tf32)
        ctx.bias = None if bias is None else ("still" if still else "moving")
        if stride == 1 and not transposed and k > 1 and k * k * w.shape[3] <= 64:
            return gather_few(x, taps, bias, size, k, pad, tf32)
        return gather(x, taps, bias, size, k, stride, pad, transposed, tf32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        k, stride, pad, transposed, tf32 = ctx.how
        grad = grad.contiguous()
        size = (x.shape[2], x.shape[3])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            if transposed:
                dx = gather(grad, w, None, size, k, 2, pad, False, tf32, turned=True)
            elif stride == 2:
                dx = gather(grad, w, None, size, k, 2, pad, True, tf32, turned=True)
            else:
                dx = gather(grad, w, None, size, k, 1, k - 1 - pad, False, tf32, turned=True)
        if ctx.needs_input_grad[1]:
            if transposed:  # the roles are swapped: x[i] meets grad[2 i - pad + tap]
                dw = weight_gradient(grad, x, k, 2, pad, tf32).transpose(2, 3)
            else:
                dw = weight_gradient(x, grad, k, stride, pad, tf32)
        if ctx.bias and ctx.needs_input_grad[2]:
            if ctx.bias == "still":
                db = torch.zeros(grad.shape[0], grad.shape[-1], device=grad.device)
            else:
                db = column_sums(grad.flatten(1, 3))
        return dx, dw, db, None, None, None, None, None, None, None
