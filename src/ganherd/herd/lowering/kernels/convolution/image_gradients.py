"""Launch the weight gradients of layers next to images, which have very few channels on one side (`image_kernels`)."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from ganherd.herd.lowering.kernels.convolution.conv_spec import dot_precision, power_of_two, split_of
from ganherd.herd.lowering.kernels.convolution.image_kernels import weight_gradient_from_few, weight_gradient_to_few
from ganherd.herd.lowering.kernels.norm import NormOnLoad
from ganherd.herd.lowering.kernels.tiles import TileShape, choose_shape

_ENOUGH = 1056  # this many programs of these kernels, which are small, fill a GPU


def has_few_outputs(k: int, stride: int, transposed: bool, co: int) -> bool:
    """Return whether a k × k convolution has so few output channels (co) that one product should compute all taps."""
    return stride == 1 and not transposed and k > 1 and k * k * co <= 64


def has_few_inputs(k: int, ci: int) -> bool:
    """Return whether a k × k convolution has so few input channels (ci) that one product should compute all taps."""
    return k > 1 and ci < 16 and k * k * ci <= 128


def weight_gradient_of_few(
    x: Tensor, g: Tensor, k: int, stride: int, pad: int, tf32: bool, with_sums: bool, input_norm: NormOnLoad | None,
    swap: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return partial weight gradients of a convolution with very few channels; see `conv.weight_gradient`.

    Args:
        x: [N, B, H, W, CI] the input.
        g: [N, B, OH, OW, CO] the gradient of the output.
        with_sums: Also compute Σ g over all places; ignored if there are very few output channels.
        input_norm: A batch norm to apply to x on load.
        swap: Return the gradient as [N, split, k*k, CO, CI]; only for very few input channels.

    Returns:
        float32 [N, split, k*k, CI, CO], to be added over `split` by the caller, and the sums [N, split, CO] or None.
    """
    n, b, h, wd, ci = x.shape
    _, _, oh, ow, co = g.shape
    to_few = has_few_outputs(k, stride, False, co)
    few, many, places = (co, ci, b * h * wd) if to_few else (ci, co, b * oh * ow)
    across = power_of_two(k * k * few, 16, 128)
    along = power_of_two(many, 16, 128)
    sizes = (b, h, wd, ci, oh, ow, co)
    table, channels = (input_norm.table, input_norm.table.shape[2]) if input_norm else (x, 1)
    options: dict[str, Any] = {"K": k, "PAD": pad, "PRECISION": dot_precision(x, tf32)}
    options |= {"NORM_INPUT": input_norm is not None, "SLOPE": input_norm.slope if input_norm else 1.0}

    def run(shape: TileShape) -> tuple[Tensor, Tensor | None]:
        tiles, blocks = triton.cdiv(places, shape.depth), triton.cdiv(many, shape.rows)
        split = split_of(n * blocks, tiles, _ENOUGH)
        out = torch.empty(n, split, k * k, *((co, ci) if swap else (ci, co)), dtype=torch.float32, device=x.device)
        sums = torch.empty(n, split, co, dtype=torch.float32, device=x.device) if with_sums and not to_few else None
        launch_options = options | {"TILES": triton.cdiv(tiles, split), "SPLIT": split, "BM": shape.depth}
        launch_options |= {"num_warps": shape.warps, "num_stages": shape.stages}
        if to_few:
            weight_gradient_to_few[(blocks, n * split)](
                x, g, out, table, *sizes, channels, **launch_options, BI=shape.rows, BJ=shape.columns
            )
        else:
            weight_gradient_from_few[(blocks, n * split)](
                x, g, out, out if sums is None else sums, table, *sizes, channels, **launch_options,
                STRIDE=stride, BI=shape.columns, BO=shape.rows, SUMS=sums is not None, SWAP=swap,
            )  # fmt: skip
        return out, sums

    deep = 128 if x.dtype != torch.float32 else 32
    shapes = [TileShape(along, across, deep, 4, 3)]
    shapes += [TileShape(rows, across, depth, 4, 4) for rows in {along, min(along, 64)} for depth in (64, 128)]
    key = (*sizes, k, stride, dot_precision(x, tf32), "g" if with_sums else "", 1, *(["line"] if input_norm else []))
    name = "weight gradient" if to_few else "weight gradient from few"
    return run(choose_shape(x, name, key, 2.0 * n * places * k * k * ci * co, shapes, run))
