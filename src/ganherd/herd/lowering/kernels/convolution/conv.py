"""Launch convolutions with a weight for each member (GAN) on `[N, B, H, W, C]`, as matrix products without im2col.

Terms:
- A tap is one position of a convolution's k × k kernel, with its weights for all channels. A place is one pixel of an
  image.
- "Gather" is the product `out[q] = Σ_tap in[place(q, tap)] · w[tap]` for each output place q: the forward pass of a
  convolution.
- A transposed convolution of stride 2 is the same product for one parity of the output at a time: the places with even
  or odd row and even or odd column form four parities, and each of them reads every other tap.
- CI and CO are the numbers of input and output channels, n of N counts members, and b of B counts samples.

The input gradient of a stride-2 convolution is a transposed convolution and vice versa, so that one kernel computes
both. A second kernel computes the weight gradients. Layers with very few channels on one side, next to images, have
separate kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ganherd.herd.lowering.kernels.convolution.conv_kernels import gather_kernel, weight_gradient_kernel
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec, dot_precision, power_of_two, split_of
from ganherd.herd.lowering.kernels.convolution.image_gradients import (
    has_few_inputs,
    has_few_outputs,
    weight_gradient_of_few,
)
from ganherd.herd.lowering.kernels.convolution.image_kernels import add_shifted
from ganherd.herd.lowering.kernels.convolution.patches import box_shapes, choose_patch, gather_patches, uses_boxes
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout, from_taps
from ganherd.herd.lowering.kernels.norm import NormOnLoad, column_sums
from ganherd.herd.lowering.kernels.tiles import TileShape, choose_shape
from ganherd.herd.lowering.ops import Epilogue


def _pointer_shapes(x: Tensor, places: int, parities: int, co: int, contracted: int, is_plain: bool) -> list[TileShape]:
    """Return candidate tile shapes of `gather_kernel`; the first one is used if none of them was measured.

    Args:
        x: [N, B, H, W, CI] the input.
        places: Output places of a member, of one parity.
        parities: Parities of the output along an axis: 2 for a transposed convolution, otherwise 1.
        co: Output channels.
        contracted: Length of the index that the kernel sums over: input channels, or input channels × taps if CI is
            very small.
        is_plain: Whether the kernel computes nothing but the product, which leaves registers for a wide tile.
    """
    wide, deep = power_of_two(co, 16, 128), power_of_two(contracted, 16, 64)
    half = x.dtype != torch.float32
    rule = TileShape(
        128 if len(x) * places >= 128 * 132 else 64,  # smaller tiles if there would be too few to fill a GPU
        wide,
        deep if half else min(deep, 32),
        4,
        3,
    )
    programs = len(x) * triton.cdiv(places, 128) * parities**2 * (co // 256)
    large = is_plain and half and co % 256 == 0 and contracted >= 64 and programs >= 256
    return [
        *([TileShape(128, 256, 64, 8, 3)] if large else []),  # 2 to 25 % faster, see benchmarks/wide_convolutions.py
        rule,
        TileShape(128, wide, deep, 8, 3),
        TileShape(128, wide, deep, 4, 4),
        TileShape(256, min(wide, 64), deep, 8, 3),
        TileShape(128, wide, min(deep, 32), 4, 4),
        TileShape(64, wide, deep, 4, 4),
    ]


@dataclass(frozen=True)
class UpstreamConv:
    """The convolution before another one that is the only reader of its output.

    The later convolution's backward pass then also undoes the activation and dropout (epilogue) of the earlier one.
    """

    epilogue: Epilogue  # of the earlier convolution
    x: Tensor  # [N, B, …] the output of the earlier convolution, after the epilogue
    channels: int  # of the output


def gather(
    x: Tensor, w: Tensor, bias: Tensor | None, spec: ConvSpec, of_gradient: bool = False,
    with_stats: bool = False, epilogue: Epilogue | None = None,
    input_norm: NormOnLoad | None = None, upstream: NormOnLoad | UpstreamConv | None = None, planes: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Convolve a contiguous x [N, B, H, W, CI] with taps w [N, k*k, CI, CO] to an output [N, B, *spec.size, CO].

    Args:
        bias: [N, CO] or None.
        of_gradient: Compute an input gradient from x, the gradient of the forward output. w is then [N, k*k, CO, CI],
            i.e. the taps of the forward pass, and at stride 1 they are used in reverse order.
        with_stats: Also compute partial statistics of the output for a batch norm after it, [3, N, partials, CO]:
            count, mean and sum of squared deviations.
        epilogue: The activation and dropout to apply to the output.
        input_norm: The batch norm before, if it has left the normalisation to this convolution: it is applied to x on
            load.
        upstream: Only with `of_gradient`: the operation that computed the input of the forward pass. For a batch norm,
            the sums that its backward pass needs are computed here and stored in `upstream.sums`; for a convolution,
            the backward pass of its epilogue is computed here.
        planes: Return the output as [N, B, CO, *spec.size].

    Returns:
        The output, and the partial statistics or the sums for the batch norm [2, N, partials, CO]; None without either.
    """
    n, b, h, wd, ci = x.shape
    co = w.shape[2] if of_gradient else w.shape[3]
    (oh, ow), layout, stride, pad, transposed, tf32 = spec
    k = layout.taps
    parities = 2 if transposed else 1  # along an axis; tiles have places of one parity
    qh, qw = triton.cdiv(oh, parities), triton.cdiv(ow, parities)
    shape = (n, b, co, oh, ow) if planes else (n, b, oh, ow, co)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    taps = (k + 1) // 2 if transposed else k  # along an axis; each parity of the output uses every other tap
    flat = ci < 16
    contracted = taps * taps * ci if flat else ci
    norm = upstream if isinstance(upstream, NormOnLoad) else input_norm
    upstream_conv = upstream if isinstance(upstream, UpstreamConv) else None
    end = upstream_conv.epilogue if upstream_conv else epilogue or Epilogue()
    has_sums = isinstance(upstream, NormOnLoad)

    boxes = [x, w, *([upstream.x] if upstream else [])]
    candidates: list[TileShape] = []
    if not (input_norm or planes) and uses_boxes(boxes, co, spec.size, 1 if transposed else stride, parities):
        candidates = box_shapes(n, (b, qh, qw), parities, co, ci, upstream is not None)
    by_boxes = bool(candidates)
    if not by_boxes:
        is_plain = not (with_stats or upstream or input_norm)
        candidates = _pointer_shapes(x, b * qh * qw, parities, co, contracted, is_plain)

    def run(shape: TileShape) -> Tensor | None:
        patch = choose_patch(b, qh, qw, shape.rows) if by_boxes else None
        partials = (patch.count_for(b, qh, qw) if patch else triton.cdiv(b * qh * qw, shape.rows)) * parities**2
        grid = (partials, triton.cdiv(co, shape.columns), n)
        kinds = 3 if with_stats else 2 if has_sums else 0
        stats = torch.empty(kinds, n, partials, co, dtype=torch.float32, device=x.device) if kinds else None
        options = {
            "bias": x if bias is None else bias, "stats": y if stats is None else stats, "table": norm.table if norm else x,
            "keys": x if end.keys is None else end.keys, "B": b, "CI": ci, "OH": oh, "OW": ow, "QH": qh, "QW": qw, "CO": co,
            "BS": 0 if bias is None else bias.stride(0), "PARTIALS": partials, "LC": norm.table.shape[2] if norm else 1,
            "DC": upstream_conv.channels if upstream_conv else co, "CALL": end.call, "P": end.p, "SCALE": 1.0 / (1.0 - end.p),
            "K": k, "STRIDE": stride, "PAD": pad, "TRANSPOSED": transposed, "HAS_BIAS": bias is not None,
            "FLIP": of_gradient and not transposed and stride == 1, "SLOPE": norm.slope if norm else 1.0,
            "OUT_SLOPE": end.slope, "DROPS": end.keys is not None, "UNDO": upstream_conv is not None,
            "HAS_STATS": with_stats, "HAS_SUMS": has_sums, "BN": shape.columns, "BK": shape.depth,
            "num_warps": shape.warps, "num_stages": shape.stages,
        }  # fmt: skip
        if patch:
            gather_patches(x, w, y, upstream.x if upstream else None, patch, shape, grid, of_gradient, options)
            return stats
        gather_kernel[grid](
            x, w, y=y, producer=upstream.x if upstream else x, **options, H=h, W=wd, WN=w.stride(0), WT=w.stride(1),
            WC=w.stride(3 if of_gradient else 2), WO=w.stride(2 if of_gradient else 3), FLAT=flat, J=taps,
            KB=triton.cdiv(contracted, shape.depth), NORM_INPUT=input_norm is not None, PLANES=planes, BM=shape.rows,
            PRECISION=dot_precision(x, tf32),
        )  # fmt: skip
        return stats

    work = 2.0 * n * b * qh * qw * parities**2 * taps * taps * ci * co
    # These words are part of the keys in the file of measured shapes: do not change them.
    extras = {"line": input_norm, "sums": has_sums, "back": upstream_conv, "after": epilogue, "planes": planes}
    words = [word for word, value in extras.items() if value]
    sizes = (*x.shape[1:], co, k, stride, transposed, of_gradient, dot_precision(x, tf32), with_stats, *words)
    stats = run(choose_shape(x, "gather boxes" if by_boxes else "gather", sizes, work, candidates, run))
    if isinstance(upstream, NormOnLoad) and stats is not None:
        # If a linear layer read an image, columns are (place, channel): each place has partial sums of all channels.
        upstream.sums = stats.view(2, n, -1, upstream.table.shape[2])
    return y, stats


def gather_few(x: Tensor, w: Tensor, bias: Tensor | None, spec: ConvSpec, input_norm: NormOnLoad | None) -> Tensor:
    """Convolve x [N, B, H, W, CI] at stride 1 to very few output channels CO: [N, B, *spec.size, CO].

    A product on tensor cores needs at least 16 columns. Therefore one 1 × 1 convolution to k*k*CO channels first
    computes the products of all taps, and a second kernel adds these, each shifted by its tap.

    Args:
        w: [N, k*k, CI, CO] the taps.
        bias: [N, CO] or None.
        input_norm: A batch norm to apply to x on load; see `gather`.
    """
    n, b, h, wd, ci = x.shape
    co, size, k, pad = w.shape[3], spec.size, spec.layout.taps, spec.pad
    all_taps = w.permute(0, 2, 1, 3).reshape(n, 1, ci, k * k * co)  # a view if the taps were converted with `together`
    product = ConvSpec((h, wd), WeightLayout(1), 1, 0, False, spec.tf32)
    products, _ = gather(x, all_taps, None, product, input_norm=input_norm, planes=True)
    y = torch.empty(n, b, *size, co, dtype=x.dtype, device=x.device)
    count = b * size[0] * size[1]
    add_shifted[(triton.cdiv(count, 256), n)](
        products, x if bias is None else bias, y, b, h, wd, size[0], size[1], count, 0 if bias is None else bias.stride(0),
        CO=co, K=k, PAD=pad, HAS_BIAS=bias is not None, BLOCK=256,
    )  # fmt: skip
    return y


def weight_gradient(
    x: Tensor, g: Tensor, k: int, stride: int, pad: int, tf32: bool, sums_of: str = "",
    input_norm: NormOnLoad | None = None, num_places: int = 1, swap: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute partial weight gradients from x [N, B, H, W, CI] and the output's gradient g [N, B, OH, OW, CO].

    The sum over the places of all samples is divided into `split` parts, so that there are enough programs to fill a
    GPU.

    Args:
        k, stride, pad: Kernel size, stride and padding of the convolution.
        tf32: Whether float32 products may be computed in TF32.
        sums_of: "x" or "g" to also compute Σ x or Σ g over all places, which is the gradient of a bias. With very few
            output channels it is not computed.
        input_norm: A batch norm to apply to x on load; see `gather`.
        num_places: If more than 1, the index CI runs over (place, channel) in x, with this many places, but over
            (channel, place) in the result, as in the weight of a linear layer after a flattening.
        swap: Return the gradient as [N, split, k*k, CO, CI].

    Returns:
        float32 [N, split, k*k, CI, CO], to be added over `split` by the caller, and the sums [N, split, CI or CO] or
        None.
    """
    n, b, h, wd, ci = x.shape
    _, _, oh, ow, co = g.shape
    if has_few_outputs(k, stride, False, co) or (has_few_inputs(k, ci) and sums_of != "x"):
        return weight_gradient_of_few(x, g, k, stride, pad, tf32, sums_of == "g", input_norm, swap)
    bi, bo = power_of_two(ci, 16, 128), power_of_two(co, 16, 128)
    rule = TileShape(bi, bo, 64 if x.dtype != torch.float32 else 32, 8 if bi * bo >= 128 * 128 else 4, 3)
    sizes = (b, h, wd, ci, oh, ow, co)
    places = b * oh * ow

    def run(shape: TileShape) -> tuple[Tensor, Tensor | None]:
        tiles = triton.cdiv(places, shape.depth)
        across = triton.cdiv(ci, shape.rows) * triton.cdiv(co, shape.columns)
        two = k > 1 and shape.rows <= 64  # two taps in a program
        pairs = triton.cdiv(k * k, 2) if two else k * k
        split = split_of(n * across * pairs, tiles, 264)
        out = torch.empty(n, split, k * k, *((co, ci) if swap else (ci, co)), dtype=torch.float32, device=x.device)
        summed = ci if sums_of == "x" else co
        sums = torch.empty(n, split, summed, dtype=torch.float32, device=x.device) if sums_of else None
        table, channels = (input_norm.table, input_norm.table.shape[2]) if input_norm else (x, 1)
        weight_gradient_kernel[(across, pairs, n * split)](
            x, g, out, out if sums is None else sums, table, *sizes, channels,
            TILES=triton.cdiv(tiles, split), SPLIT=split, BM=shape.depth, BI=shape.rows, BO=shape.columns,
            K=k, STRIDE=stride, PAD=pad, TWO=two, SUMS=("", "g", "x").index(sums_of), PLACES=num_places, SWAP=swap,
            NORM_INPUT=input_norm is not None, SLOPE=input_norm.slope if input_norm else 1.0,
            PRECISION=dot_precision(x, tf32), num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
        return out, sums

    others = [
        TileShape(bi, bo, 64, 4, 3),
        TileShape(bi, bo, 64, 8, 4),
        TileShape(min(bi, 64), bo, 64, 4, 4),
        TileShape(bi, min(bo, 64), 64, 4, 4),
    ]
    key = (*sizes, k, stride, dot_precision(x, tf32), sums_of, num_places, *(["line"] if input_norm else []))
    work = 2.0 * n * places * k * k * ci * co
    out, sums = run(choose_shape(x, "weight gradient", key, work, [rule, *others], run))
    return out, sums


def input_gradient(
    grad: Tensor, w: Tensor, spec: ConvSpec, size: tuple[int, int], upstream: NormOnLoad | UpstreamConv | None = None
) -> Tensor:
    """Return the gradient of a convolution's input, [N, B, *size, CI].

    Args:
        grad: [N, B, OH, OW, CO] the gradient of the output.
        w: [N, k*k, CI, CO] the taps of the forward pass.
        spec: The settings of the forward pass.
        size: Height and width of the input.
        upstream: The operation that computed the input; see `gather`.
    """
    # At stride 2 a convolution and a transposed one are each other's gradient.
    pad = spec.pad if spec.stride == 2 else spec.layout.taps - 1 - spec.pad
    transposed = spec.stride == 2 and not spec.transposed
    back = spec._replace(size=size, pad=pad, transposed=transposed)
    return gather(grad, w, None, back, of_gradient=True, upstream=upstream)[0]


def parameter_gradients(
    x: Tensor, grad: Tensor, spec: ConvSpec, shape: torch.Size, with_bias: bool = False,
    input_norm: NormOnLoad | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the gradient of a convolution's weight, in the layout of its module, and that of the bias.

    Args:
        x: [N, B, H, W, CI] the input.
        grad: [N, B, OH, OW, CO] the gradient of the output.
        shape: The shape of the module's weight.
        with_bias: Compute the gradient of the bias [N, CO]; otherwise None is returned for it.
        input_norm: A batch norm to apply to x on load; see `gather`.
    """
    layout, tf32, sums_of = spec.layout, spec.tf32, "g" if with_bias else ""
    is_product = layout.k == 1 and layout.places_in == 1 and not layout.in_first and spec.stride == 1 and spec.pad == 0
    if is_product and input_norm is None:
        # With x and grad exchanged, the gradient of a single tap has the layout of the module.
        sums_of = "x" if with_bias else ""
        partials, db = weight_gradient(grad, x, 1, 1, 0, tf32, sums_of, num_places=layout.places_out)
        return _add(partials).view(shape), None if db is None else _add(db)
    db = None
    if spec.transposed:  # x and grad exchange their roles: x[i] is paired with grad[2 i - pad + tap]
        partials, _ = weight_gradient(grad, x, layout.taps, 2, spec.pad, tf32, swap=True)
    else:
        partials, db = weight_gradient(x, grad, layout.taps, spec.stride, spec.pad, tf32, sums_of, input_norm)
    dw, db = from_taps(partials, layout, shape, db)
    return dw, column_sums(grad.flatten(1, 3)) if with_bias and db is None else db


def _add(partials: Tensor) -> Tensor:
    """Return the sum of partial results [N, split, …] over `split`."""
    return partials[:, 0] if partials.shape[1] == 1 else partials.sum(1)
