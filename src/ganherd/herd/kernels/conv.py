"""Convolutions with a weight for each member on `[N, B, H, W, C]`, as implicit matrix products that never write columns.

One kernel gathers: `out[q] = Σ_tap in[place(q, tap)] · w[tap]`. It is the forward pass of a convolution, and in its
transposed form, one parity of the output at a time, the forward pass of a stride-2 transposed convolution; each is the
other's input gradient. A second kernel is the weight gradient of both.
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
    B, H, W, CI, OH, OW, QH, QW, CO,
    K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, HAS_BIAS: tl.constexpr,
    J: tl.constexpr, KB: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [N, B, H, W, CI], w [N, K*K, CI, CO], y [N, B, OH, OW, CO]; q runs over [B, QH, QW], J taps an axis."""
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
    w += n * K * K * CI * CO
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(J * J * KB):
        tap = step // KB
        c = (step % KB) * BK + tl.arange(0, BK)
        if TRANSPOSED:
            ky = 2 * (tap // J) + first_y
            kx = 2 * (tap % J) + first_x
            iy = qy + (py + PAD - ky) // 2  # the parity makes it even: the division is exact
            ix = qx + (px + PAD - kx) // 2
            there = (ky < K) & (kx < K)
        else:
            ky = tap // J
            kx = tap % J
            iy = qy * STRIDE - PAD + ky
            ix = qx * STRIDE - PAD + kx
            there = True
        inside = known & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W) & there
        place = (b * H + iy) * W + ix
        left = tl.load(x + place[:, None] * CI + c[None, :], mask=inside[:, None] & (c < CI)[None, :], other=0.0)
        row = (ky * K + kx) * CI + c
        right = tl.load(
            w + row[:, None] * CO + co[None, :], mask=((c < CI) & there)[:, None] & (co < CO)[None, :], other=0.0
        )
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + n * CO + co, mask=co < CO, other=0.0).to(tl.float32)[None, :]
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


def _precision(x: Tensor, tf32: bool) -> str:
    return "tf32" if x.dtype == torch.float32 and tf32 else "ieee"


def _power(value: int, low: int, high: int) -> int:
    """The power of two from `low` to `high` that covers the value best."""
    return max(low, min(high, triton.next_power_of_2(value)))


def gather(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    size: tuple[int, int],
    k: int,
    stride: int,
    pad: int,
    transposed: bool,
    tf32: bool,
) -> Tensor:
    """x [N, B, H, W, CI] contiguous, w [N, k*k, CI, CO] contiguous -> [N, B, *size, CO]."""
    n, b, h, wd, ci = x.shape
    co = w.shape[-1]
    oh, ow = size
    qh, qw = ((oh + 1) // 2, (ow + 1) // 2) if transposed else (oh, ow)
    y = torch.empty(n, b, oh, ow, co, dtype=x.dtype, device=x.device)
    bk = _power(ci, 16, 64 if x.dtype != torch.float32 else 32)
    bn = _power(co, 16, 128)
    bm = 128 if b * qh * qw * n >= 128 * 132 else 64  # smaller tiles where there would be too few to fill a GPU
    warps = 8 if transposed and bn >= 128 else 4
    grid = (triton.cdiv(b * qh * qw, bm), triton.cdiv(co, bn), n * (4 if transposed else 1))
    _gather[grid](
        x, w, bias.contiguous() if bias is not None else x, y, b, h, wd, ci, oh, ow, qh, qw, co,
        K=k, STRIDE=stride, PAD=pad, TRANSPOSED=transposed, HAS_BIAS=bias is not None,
        J=(k + 1) // 2 if transposed else k, KB=triton.cdiv(ci, bk),  # a parity of the output meets every other tap
        BM=bm, BN=bn, BK=bk, PRECISION=_precision(x, tf32), num_warps=warps, num_stages=3,
    )  # fmt: skip
    return y


def weight_gradient(x: Tensor, g: Tensor, k: int, stride: int, pad: int, tf32: bool) -> Tensor:
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> float32 [N, k*k, CI, CO]."""
    n, b, h, wd, ci = x.shape
    _, _, oh, ow, co = g.shape
    bi, bo = _power(ci, 16, 128), _power(co, 16, 128)
    bm = 64 if x.dtype != torch.float32 else 32
    tiles = triton.cdiv(b * oh * ow, bm)
    blocks = triton.cdiv(ci, bi) * triton.cdiv(co, bo) * k * k * n
    split = 1  # more parts where there are too few blocks to fill a GPU
    while blocks * split < 264 and tiles // (2 * split) >= 8:
        split *= 2
    out = torch.empty(n, split, k * k, ci, co, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(ci, bi) * triton.cdiv(co, bo), k * k, n * split)
    _weight_gradient[grid](
        x, g, out, b, h, wd, ci, oh, ow, co,
        TILES=triton.cdiv(tiles, split), K=k, STRIDE=stride, PAD=pad, SPLIT=split, BM=bm, BI=bi, BO=bo,
        PRECISION=_precision(x, tf32), num_warps=8 if bi * bo >= 128 * 128 else 4, num_stages=3,
    )  # fmt: skip
    return out[:, 0] if split == 1 else out.sum(1)


class MemberConv(torch.autograd.Function):
    """A convolution, or a stride-2 transposed one, of every member with its own weight; differentiable once.

    x [N, B, H, W, CI] and w [N, k*k, CI, CO] in the dtype of the computation; bias [N, CO] or None.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, stride: int, pad: int,
        transposed: bool, tf32: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, w)
        ctx.how = (k, stride, pad, transposed, tf32)
        ctx.has_bias = bias is not None
        return gather(x, w, bias, size, k, stride, pad, transposed, tf32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        k, stride, pad, transposed, tf32 = ctx.how
        grad = grad.contiguous()
        size = (x.shape[2], x.shape[3])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            turned = w.transpose(2, 3).contiguous()  # [N, k*k, CO, CI]
            if transposed:
                dx = gather(grad, turned, None, size, k, 2, pad, False, tf32)
            elif stride == 2:
                dx = gather(grad, turned, None, size, k, 2, pad, True, tf32)
            else:
                dx = gather(grad, turned.flip(1), None, size, k, 1, k - 1 - pad, False, tf32)
        if ctx.needs_input_grad[1]:
            if transposed:  # the roles are swapped: x[i] meets grad[2 i - pad + tap]
                dw = weight_gradient(grad, x, k, 2, pad, tf32).transpose(2, 3)
            else:
                dw = weight_gradient(x, grad, k, stride, pad, tf32)
            dw = dw.to(w.dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            db = column_sums(grad.flatten(1, 3))
        return dx, dw, db, None, None, None, None, None, None
