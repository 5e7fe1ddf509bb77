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
from torch import Tensor

from ganherd.herd.kernels.conv_kernels import (
    add_shifted,
    gather_kernel,
    weight_gradient_few,
    weight_gradient_kernel,
)
from ganherd.herd.kernels.norm import column_sums
from ganherd.herd.kernels.shapes import Shape, chosen
from ganherd.herd.kernels.taps import Turn, turned, turned_back


def _precision(x: Tensor, tf32: bool) -> str:
    return "tf32" if x.dtype == torch.float32 and tf32 else "ieee"


def _power(value: int, low: int, high: int) -> int:
    """The power of two from `low` to `high` that covers the value best."""
    return max(low, min(high, triton.next_power_of_2(value)))


def _others(rule: Shape, co: int, contracted: int) -> list[Shape]:
    """Shapes that are worth a measurement beside the rule's."""
    wide, deep = _power(co, 16, 128), _power(contracted, 16, 64)
    found = [
        Shape(128, wide, deep, 8, 3),
        Shape(128, wide, deep, 4, 4),
        Shape(256, min(wide, 64), deep, 8, 3),
        Shape(128, wide, min(deep, 32), 4, 4),
    ]
    return [shape for shape in found if shape != rule]


def gather(
    x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, stride: int, pad: int, transposed: bool,
    tf32: bool, turned: bool = False, dtype: torch.dtype | None = None, with_stats: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """x [N, B, H, W, CI] contiguous, w [N, k*k, CI, CO] contiguous -> [N, B, *size, CO], and its statistics if asked.

    `turned`: w is [N, k*k, CO, CI], as the pass has it whose gradient this is; at stride 1 its taps are reversed too.
    Statistics are [3, N, parts, CO]: count, mean and squared deviations of each part of the rows.
    """
    n, b, h, wd, ci = x.shape
    co = w.shape[2] if turned else w.shape[3]
    oh, ow = size
    qh, qw = ((oh + 1) // 2, (ow + 1) // 2) if transposed else (oh, ow)
    y = torch.empty(n, b, oh, ow, co, dtype=dtype or x.dtype, device=x.device)
    taps = (k + 1) // 2 if transposed else k  # along an axis: a parity of the output meets every other tap
    flat = ci < 16
    contracted = taps * taps * ci if flat else ci
    rule = Shape(
        128 if b * qh * qw * n >= 128 * 132 else 64,  # smaller tiles where there would be too few to fill a GPU
        _power(co, 16, 128),
        _power(contracted, 16, 64 if x.dtype != torch.float32 else 32),
        8 if transposed and co > 64 else 4,
        3,
    )
    per_tap = w.shape[2] * w.shape[3]

    def run(shape: Shape) -> Tensor | None:
        parts = triton.cdiv(b * qh * qw, shape.rows) * (4 if transposed else 1)
        grid = (parts, triton.cdiv(co, shape.columns), n)
        stats = torch.empty(3, n, parts, co, dtype=torch.float32, device=x.device) if with_stats else None
        gather_kernel[grid](
            x, w, x if bias is None else bias, y, y if stats is None else stats, b, h, wd, ci, oh, ow, qh, qw, co,
            k * k * per_tap, per_tap, *((1, w.shape[3]) if turned else (w.shape[3], 1)),
            0 if bias is None else bias.stride(0), parts, HAS_STATS=with_stats,
            K=k, STRIDE=stride, PAD=pad, TRANSPOSED=transposed, FLIP=turned and not transposed and stride == 1,
            HAS_BIAS=bias is not None, FLAT=flat, J=taps, KB=triton.cdiv(contracted, shape.depth),
            BM=shape.rows, BN=shape.columns, BK=shape.depth, PRECISION=_precision(x, tf32),
            num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        return stats

    work = 2.0 * n * b * qh * qw * (4 if transposed else 1) * taps * taps * ci * co
    sizes = (*x.shape, co, k, stride, transposed, turned, tf32, with_stats)
    stats = run(chosen(x, "gather", sizes, work, [rule, *_others(rule, co, contracted)], run))
    return y, stats


def gather_few(
    x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, pad: int, tf32: bool
) -> Tensor:
    """`gather` at stride 1 for very few channels out: one product for all taps, then the taps are added where they belong."""
    n, b, h, wd, ci = x.shape
    co = w.shape[3]
    together = w.permute(0, 2, 1, 3).reshape(n, 1, ci, k * k * co).contiguous()
    products, _ = gather(x, together, None, (h, wd), 1, 1, 0, False, tf32, dtype=torch.float32)
    y = torch.empty(n, b, *size, co, dtype=x.dtype, device=x.device)
    count = y[0].numel()
    add_shifted[(triton.cdiv(count, 1024), n)](
        products, x if bias is None else bias, y, b, h, wd, size[0], size[1], count, 0 if bias is None else bias.stride(0),
        CO=co, K=k, PAD=pad, HAS_BIAS=bias is not None, BLOCK=1024,
    )  # fmt: skip
    return y


def weight_gradient(
    x: Tensor, g: Tensor, k: int, stride: int, pad: int, tf32: bool, with_sums: bool = False
) -> tuple[Tensor, Tensor | None]:
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> float32 parts [N, split, k*k, CI, CO], to be added; and Σ g if asked."""
    n, b, h, wd, ci = x.shape
    _, _, oh, ow, co = g.shape
    few = stride == 1 and k > 1 and k * k * co <= 64
    bi, bo = _power(ci, 16, 128), _power(k * k * co if few else co, 16, 128)
    rule = Shape(bi, bo, 64 if x.dtype != torch.float32 else 32, 8 if bi * bo >= 128 * 128 else 4, 3)
    sizes = (b, h, wd, ci, oh, ow, co)
    places = b * (h * wd if few else oh * ow)

    def run(shape: Shape) -> tuple[Tensor, Tensor | None]:
        tiles = triton.cdiv(places, shape.depth)
        across = triton.cdiv(ci, shape.rows) * triton.cdiv(co, shape.columns)
        two = k > 1 and shape.rows <= 64  # taps in a program
        pairs = triton.cdiv(k * k, 2) if two else k * k
        blocks = n * (triton.cdiv(ci, shape.rows) if few else across * pairs)
        split = 1  # more parts where there are too few blocks to fill a GPU
        while blocks * split < 264 and tiles // (2 * split) >= 8:
            split *= 2
        out = torch.empty(n, split, k * k, ci, co, dtype=torch.float32, device=x.device)
        sums = torch.empty(n, split, co, dtype=torch.float32, device=x.device) if with_sums and not few else None
        how = {
            "TILES": triton.cdiv(tiles, split),
            "K": k,
            "PAD": pad,
            "SPLIT": split,
            "BM": shape.depth,
            "BI": shape.rows,
        }
        how |= {"PRECISION": _precision(x, tf32), "num_warps": shape.warps, "num_stages": shape.stages}
        if few:
            weight_gradient_few[(triton.cdiv(ci, shape.rows), n * split)](x, g, out, *sizes, **how, BJ=shape.columns)
        else:
            weight_gradient_kernel[(across, pairs, n * split)](
                x, g, out, out if sums is None else sums, *sizes, **how,
                STRIDE=stride, BO=shape.columns, TWO=two, HAS_SUMS=with_sums,
            )  # fmt: skip
        return out, sums

    others = [
        Shape(bi, bo, 64, 4, 3),
        Shape(bi, bo, 64, 8, 4),
        Shape(min(bi, 64), bo, 64, 4, 4),
        Shape(bi, min(bo, 64), 64, 4, 4),
    ]
    key = (n, *sizes, k, stride, tf32, with_sums)
    work = 2.0 * n * places * k * k * ci * co
    out, sums = run(chosen(x, "weight gradient", key, work, [rule, *(s for s in others if s != rule)], run))
    if few and with_sums:
        return out, column_sums(g.flatten(1, 3))
    return out, None if sums is None else sums[:, 0] if sums.shape[1] == 1 else sums.sum(1)


class MemberConv(torch.autograd.Function):
    """A convolution, or a stride-2 transposed one, of every member with its own weight; differentiable once.

    x [N, B, H, W, CI] contiguous in the dtype of the computation; the weight as its module has it, float32; bias [N, CO] or
    None. `normed`: a batch norm follows. It takes the bias away again, so that its gradient is zero, and wants the statistics
    [3, N, parts, CO] that are answered beside the output.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, size: tuple[int, int], turn: Turn, stride: int, pad: int,
        transposed: bool, tf32: bool, normed: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if bias is not None and bias.stride(1) != 1:
            bias = bias.contiguous()
        w, k = turned(weight, turn, x.dtype), turn.taps
        ctx.save_for_backward(x, w)
        ctx.how = (turn, stride, pad, transposed, tf32, weight.shape)
        ctx.bias = None if bias is None else ("still" if normed else "moving")
        if stride == 1 and not transposed and k > 1 and k * k * w.shape[3] <= 64:
            return gather_few(x, w, bias, size, k, pad, tf32), None
        y, stats = gather(x, w, bias, size, k, stride, pad, transposed, tf32, with_stats=normed)
        if stats is not None:
            ctx.mark_non_differentiable(stats)
        return y, stats

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any = None) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        turn, stride, pad, transposed, tf32, shape = ctx.how
        k = turn.taps
        grad = grad.contiguous()
        size = (x.shape[2], x.shape[3])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            if transposed:
                dx, _ = gather(grad, w, None, size, k, 2, pad, False, tf32, turned=True)
            elif stride == 2:
                dx, _ = gather(grad, w, None, size, k, 2, pad, True, tf32, turned=True)
            else:
                dx, _ = gather(grad, w, None, size, k, 1, k - 1 - pad, False, tf32, turned=True)
        moving = ctx.bias == "moving" and ctx.needs_input_grad[2]
        if ctx.needs_input_grad[1]:
            if transposed:  # the roles are swapped: x[i] meets grad[2 i - pad + tap]
                parts, _ = weight_gradient(grad, x, k, 2, pad, tf32)
            else:
                parts, db = weight_gradient(x, grad, k, stride, pad, tf32, moving)
            dw = turned_back(parts, turn, transposed, shape)
        if moving and db is None:
            db = column_sums(grad.flatten(1, 3))
        if ctx.bias == "still" and ctx.needs_input_grad[2]:
            db = torch.zeros(grad.shape[0], grad.shape[-1], device=grad.device)
        return dx, dw, db, None, None, None, None, None, None, None
