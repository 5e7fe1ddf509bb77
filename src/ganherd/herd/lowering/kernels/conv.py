"""Convolutions with a weight for each member on `[N, B, H, W, C]`, as implicit matrix products that never write columns.

One kernel gathers: `out[q] = Σ_tap in[place(q, tap)] · w[tap]`. It is the forward pass of a convolution, and in its
transposed form, one parity of the output at a time, the forward pass of a stride-2 transposed convolution; each is the
other's input gradient. A second kernel is the weight gradient of both. Layers with very few channels (images) have
variants that read their large side only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ganherd.herd.lowering.kernels.conv_kernels import (
    add_shifted,
    gather_kernel,
    weight_gradient_few,
    weight_gradient_kernel,
)
from ganherd.herd.lowering.kernels.norm import NormOnLoad, column_sums
from ganherd.herd.lowering.kernels.taps import WeightLayout, from_taps
from ganherd.herd.lowering.kernels.tiles import TileShape, choose_shape
from ganherd.herd.lowering.ops import Epilogue


def _precision(x: Tensor, tf32: bool) -> str:
    return "tf32" if x.dtype == torch.float32 and tf32 else "ieee"


def _power(value: int, low: int, high: int) -> int:
    """The power of two from `low` to `high` that covers the value best."""
    return max(low, min(high, triton.next_power_of_2(value)))


def _others(rule: TileShape, co: int, contracted: int) -> list[TileShape]:
    """Shapes that are worth a measurement beside the rule's."""
    wide, deep = _power(co, 16, 128), _power(contracted, 16, 64)
    found = [
        TileShape(128, wide, deep, 8, 3),
        TileShape(128, wide, deep, 4, 4),
        TileShape(256, min(wide, 64), deep, 8, 3),
        TileShape(128, wide, min(deep, 32), 4, 4),
    ]
    return [shape for shape in found if shape != rule]


@dataclass(frozen=True)
class UpstreamConv:
    """What another convolution made and ended with, as the one that reads it sees it."""

    after: Epilogue
    x: Tensor  # [N, B, …]
    channels: int


def gather(
    x: Tensor, w: Tensor, bias: Tensor | None, size: tuple[int, int], k: int, stride: int, pad: int, transposed: bool,
    tf32: bool, turned: bool = False, dtype: torch.dtype | None = None, with_stats: bool = False,
    after: Epilogue | None = None, line: NormOnLoad | None = None, into: NormOnLoad | UpstreamConv | None = None,
    planes: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """x [N, B, H, W, CI] contiguous, w [N, k*k, CI, CO] -> [N, B, *size, CO], and its statistics if asked.

    `turned`: w is [N, k*k, CO, CI], as the pass has it whose gradient this is; at stride 1 its taps are reversed too.
    Statistics are [3, N, parts, CO]: count, mean and squared deviations of each part of the rows.
    `after`: how it ends. `line`: the batch norm that x still waits for. `into`: what made the tensor that this is the gradient
    of. A batch norm gets its sums; the end of another convolution is undone here. `planes`: answers [N, B, CO, *size].
    """
    n, b, h, wd, ci = x.shape
    co = w.shape[2] if turned else w.shape[3]
    oh, ow = size
    qh, qw = ((oh + 1) // 2, (ow + 1) // 2) if transposed else (oh, ow)
    shape = (n, b, co, oh, ow) if planes else (n, b, oh, ow, co)
    y = torch.empty(shape, dtype=dtype or x.dtype, device=x.device)
    taps = (k + 1) // 2 if transposed else k  # along an axis: a parity of the output meets every other tap
    flat = ci < 16
    contracted = taps * taps * ci if flat else ci
    rule = TileShape(
        128 if b * qh * qw * n >= 128 * 132 else 64,  # smaller tiles where there would be too few to fill a GPU
        _power(co, 16, 128),
        _power(contracted, 16, 64 if x.dtype != torch.float32 else 32),
        8 if transposed and co > 64 else 4,
        3,
    )
    norm = into if isinstance(into, NormOnLoad) else line
    back = into if isinstance(into, UpstreamConv) else None
    end = back.after if back else after or Epilogue()
    sums = isinstance(into, NormOnLoad)

    def run(shape: TileShape) -> Tensor | None:
        parts = triton.cdiv(b * qh * qw, shape.rows) * (4 if transposed else 1)
        grid = (parts, triton.cdiv(co, shape.columns), n)
        kinds = 3 if with_stats else 2 if sums else 0
        stats = torch.empty(kinds, n, parts, co, dtype=torch.float32, device=x.device) if kinds else None
        gather_kernel[grid](
            x, w, x if bias is None else bias, y, y if stats is None else stats, norm.table if norm else x,
            into.x if into else x, x if end.keys is None else end.keys, b, h, wd, ci, oh, ow, qh, qw, co,
            w.stride(0), w.stride(1), *((w.stride(3), w.stride(2)) if turned else (w.stride(2), w.stride(3))),
            0 if bias is None else bias.stride(0), parts, norm.table.shape[2] if norm else 1, back.channels if back else co,
            end.call, end.p, 1.0 / (1.0 - end.p), LINED=line is not None, SLOPE=norm.slope if norm else 1.0,
            OUT_SLOPE=end.slope, DROPS=end.keys is not None, BACK=back is not None, HAS_STATS=with_stats,
            HAS_SUMS=sums, PLANES=planes,
            K=k, STRIDE=stride, PAD=pad, TRANSPOSED=transposed, FLIP=turned and not transposed and stride == 1,
            HAS_BIAS=bias is not None, FLAT=flat, J=taps, KB=triton.cdiv(contracted, shape.depth),
            BM=shape.rows, BN=shape.columns, BK=shape.depth, PRECISION=_precision(x, tf32),
            num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        return stats

    work = 2.0 * n * b * qh * qw * (4 if transposed else 1) * taps * taps * ci * co
    extras = [
        name
        for name, has in (("line", line), ("sums", sums), ("back", back), ("after", after), ("planes", planes))
        if has
    ]
    sizes = (*x.shape[1:], co, k, stride, transposed, turned, tf32, with_stats, *extras)
    stats = run(choose_shape(x, "gather", sizes, work, [rule, *_others(rule, co, contracted)], run))
    if (
        isinstance(into, NormOnLoad) and stats is not None
    ):  # columns are (place, channel) where a linear layer read an image
        into.sums = stats.view(2, n, -1, into.table.shape[2])
    return y, stats


def gather_few(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    size: tuple[int, int],
    k: int,
    pad: int,
    tf32: bool,
    line: NormOnLoad | None,
) -> Tensor:
    """`gather` at stride 1 for very few channels out: one product for all taps, then the taps are added where they belong."""
    n, b, h, wd, ci = x.shape
    co = w.shape[3]
    together = w.permute(0, 2, 1, 3).reshape(n, 1, ci, k * k * co)  # a view, if they were turned for it
    products, _ = gather(x, together, None, (h, wd), 1, 1, 0, False, tf32, dtype=torch.float32, line=line, planes=True)
    y = torch.empty(n, b, *size, co, dtype=x.dtype, device=x.device)
    count = b * size[0] * size[1]
    add_shifted[(triton.cdiv(count, 256), n)](
        products, x if bias is None else bias, y, b, h, wd, size[0], size[1], count, 0 if bias is None else bias.stride(0),
        CO=co, K=k, PAD=pad, HAS_BIAS=bias is not None, BLOCK=256,
    )  # fmt: skip
    return y


def weight_gradient(
    x: Tensor, g: Tensor, k: int, stride: int, pad: int, tf32: bool, sums_of: str = "", line: NormOnLoad | None = None,
    spread: int = 1,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """x [N, B, H, W, CI], g [N, B, OH, OW, CO] -> float32 parts [N, split, k*k, CI, CO], to be added; and Σ x or Σ g if asked,
    in as many parts; not where there are very few channels.

    `line`: the batch norm that x still waits for. `spread`: CI is (place, channel) in x, of so many
    places, and (channel, place) in the answer.
    """
    n, b, h, wd, ci = x.shape
    _, _, oh, ow, co = g.shape
    few = has_few_outputs(k, stride, False, co)
    bi, bo = _power(ci, 16, 128), _power(k * k * co if few else co, 16, 128)
    rule = TileShape(bi, bo, 64 if x.dtype != torch.float32 else 32, 8 if bi * bo >= 128 * 128 else 4, 3)
    sizes = (b, h, wd, ci, oh, ow, co)
    places = b * (h * wd if few else oh * ow)

    def run(shape: TileShape) -> tuple[Tensor, Tensor | None]:
        tiles = triton.cdiv(places, shape.depth)
        across = triton.cdiv(ci, shape.rows) * triton.cdiv(co, shape.columns)
        two = k > 1 and shape.rows <= 64  # taps in a program
        pairs = triton.cdiv(k * k, 2) if two else k * k
        blocks = n * (triton.cdiv(ci, shape.rows) if few else across * pairs)
        split = 1  # more parts where there are too few blocks to fill a GPU
        while blocks * split < (1056 if few else 264) and tiles // (2 * split) >= 8:
            split *= 2
        out = torch.empty(n, split, k * k, ci, co, dtype=torch.float32, device=x.device)
        summed = ci if sums_of == "x" else co
        sums = torch.empty(n, split, summed, dtype=torch.float32, device=x.device) if sums_of and not few else None
        how = {
            "TILES": triton.cdiv(tiles, split),
            "K": k,
            "PAD": pad,
            "SPLIT": split,
            "BM": shape.depth,
            "BI": shape.rows,
        }
        how |= {"PRECISION": _precision(x, tf32), "num_warps": shape.warps, "num_stages": shape.stages}
        how |= {"LINED": line is not None, "SLOPE": line.slope if line else 1.0}
        table, channels = (line.table, line.table.shape[2]) if line else (x, 1)
        if few:
            weight_gradient_few[(triton.cdiv(ci, shape.rows), n * split)](
                x, g, out, table, *sizes, channels, **how, BJ=shape.columns
            )
        else:
            weight_gradient_kernel[(across, pairs, n * split)](
                x, g, out, out if sums is None else sums, table, *sizes, channels, **how,
                STRIDE=stride, BO=shape.columns, TWO=two, SUMS=("", "g", "x").index(sums_of), PLACES=spread,
            )  # fmt: skip
        return out, sums

    others = [
        TileShape(bi, bo, 64, 4, 3),
        TileShape(bi, bo, 64, 8, 4),
        TileShape(min(bi, 64), bo, 64, 4, 4),
        TileShape(bi, min(bo, 64), 64, 4, 4),
    ]
    key = (*sizes, k, stride, tf32, sums_of, spread, *(["line"] if line else []))
    work = 2.0 * n * places * k * k * ci * co
    out, sums = run(choose_shape(x, "weight gradient", key, work, [rule, *(s for s in others if s != rule)], run))
    return out, sums


def has_few_outputs(k: int, stride: int, transposed: bool, co: int) -> bool:
    """Whether a convolution makes so few channels that all its taps are one product."""
    return stride == 1 and not transposed and k > 1 and k * k * co <= 64


class ConvSpec(NamedTuple):
    """What a convolution is, beside its tensors."""

    size: tuple[int, int]  # of the output
    turn: WeightLayout
    stride: int
    pad: int
    transposed: bool
    tf32: bool


def input_gradient(
    grad: Tensor, w: Tensor, how: ConvSpec, size: tuple[int, int], into: NormOnLoad | UpstreamConv | None = None
) -> Tensor:
    """grad [N, B, OH, OW, CO], w as the forward pass reads it -> [N, B, *size, CI]."""
    k, pad = how.turn.taps, how.pad
    if how.transposed:
        return gather(grad, w, None, size, k, 2, pad, False, how.tf32, turned=True, into=into)[0]
    if how.stride == 2:
        return gather(grad, w, None, size, k, 2, pad, True, how.tf32, turned=True, into=into)[0]
    return gather(grad, w, None, size, k, 1, k - 1 - pad, False, how.tf32, turned=True, into=into)[0]


def parameter_gradients(
    x: Tensor, grad: Tensor, how: ConvSpec, shape: torch.Size, with_sums: bool = False, line: NormOnLoad | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the weight, as its module has it, and of the bias if asked."""
    turn, sums_of = how.turn, "g" if with_sums else ""
    if turn.k == 1 and turn.places_in == 1 and not turn.in_first and how.stride == 1 and how.pad == 0 and line is None:
        # of one tap: the gradient comes out as the module has it, if the roles are swapped
        parts, db = weight_gradient(grad, x, 1, 1, 0, how.tf32, "x" if with_sums else "", spread=turn.places_out)
        return _added(parts).view(shape), None if db is None else _added(db)
    db = None
    if how.transposed:  # the roles are swapped: x[i] meets grad[2 i - pad + tap]
        parts, _ = weight_gradient(grad, x, turn.taps, 2, how.pad, how.tf32)
    else:
        parts, db = weight_gradient(x, grad, turn.taps, how.stride, how.pad, how.tf32, sums_of, line)
    dw, db = from_taps(parts, turn, how.transposed, shape, db)
    return dw, column_sums(grad.flatten(1, 3)) if with_sums and db is None else db


def _added(parts: Tensor) -> Tensor:
    return parts[:, 0] if parts.shape[1] == 1 else parts.sum(1)
