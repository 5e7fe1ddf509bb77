"""Launch convolutions by `gather_patch_kernel`, whose tiles are patches of images, and decide which of them can use it.

On a GPU with tensor memory access (NVIDIA Hopper) such a tile is loaded and stored as boxes, which the GPU copies by
itself. A place is a pixel of an image; N counts members (GANs). For a transposed convolution of stride 2 a tile has
output places of one parity, i.e. with even or odd row and even or odd column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ganherd.herd.lowering.kernels.convolution.patch_kernels import gather_patch_kernel
from ganherd.herd.lowering.kernels.tiles import TileShape

_MAX_WASTE = 1.15  # patches that cover the output may have at most this many times its places


class Patch(NamedTuple):
    """The size of a patch: the same rectangle of places in consecutive images. Its places are the rows of a tile."""

    images: int
    height: int
    width: int

    def count_for(self, b: int, height: int, width: int) -> int:
        """Return how many patches are needed to cover b images of this height and width."""
        return triton.cdiv(b, self.images) * triton.cdiv(height, self.height) * triton.cdiv(width, self.width)


def choose_patch(b: int, height: int, width: int, rows: int) -> Patch | None:
    """Return the patch with `rows` places of which the fewest cover b images; None if even these exceed `_MAX_WASTE`.

    If several patches are equally good, the widest is returned. The number of images of a patch divides b, because the
    image after the last one belongs to another member.

    >>> choose_patch(64, 16, 16, 128), choose_patch(64, 8, 8, 128), choose_patch(64, 5, 5, 128)
    (Patch(images=1, height=8, width=16), Patch(images=2, height=8, width=8), None)
    """
    powers = [1 << i for i in range(rows.bit_length())]
    patches = [Patch(rows // (h * w), h, w) for h in powers for w in powers if h * w <= rows]
    patches = [patch for patch in patches if b % patch.images == 0]
    best = min(patches, key=lambda patch: (patch.count_for(b, height, width), -patch.width, -patch.height))
    return best if best.count_for(b, height, width) * rows <= _MAX_WASTE * b * height * width else None


def _is_hopper(device: torch.device) -> bool:
    """Return whether a device is an NVIDIA Hopper GPU, the generation on which boxes were measured to be faster."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9


def uses_boxes(tensors: list[Tensor], co: int, size: tuple[int, int], step: int, spacing: int) -> bool:
    """Return whether a convolution can run by `gather_patches`. On a CPU this means Triton's interpreter, for tests.

    Args:
        tensors: The input [N, B, H, W, CI], the taps, and all other tensors that are loaded as boxes.
        co: Output channels.
        size: Height and width of the output.
        step: Distance of the input places that two neighbouring output places read, i.e. the stride.
        spacing: Distance of the output places in a tile: 2 for a transposed convolution, otherwise 1.
    """
    x = tensors[0]
    _, _, h, w, ci = x.shape
    return (
        (not x.is_cuda or _is_hopper(x.device))
        and x.dtype in (torch.float16, torch.bfloat16)
        and all(one.is_contiguous() and one.data_ptr() % 16 == 0 for one in tensors)
        and ci % 16 == 0
        and co % 64 == 0
        and size != (1, 1)
        and step <= 2
        and h % step == w % step == size[0] % spacing == size[1] % spacing == 0
    )


def box_shapes(
    n: int, places: tuple[int, int, int], parities: int, co: int, ci: int, has_upstream: bool
) -> list[TileShape]:
    """Return candidate tile shapes of `gather_patch_kernel`; the first one is used if none of them was measured.

    The list is empty if no shape covers the output well; see `choose_patch`.

    Args:
        n: Members.
        places: (samples, height, width) of the output places of one parity.
        parities: Parities of the output along an axis: 2 for a transposed convolution, otherwise 1.
        co, ci: Output and input channels.
        has_upstream: Whether the end of the kernel also loads the output of the operation before, which takes
            registers.
    """
    wide = 128 if co % 128 == 0 else 64
    deep = next(depth for depth in (64, 32, 16) if ci % depth == 0)
    small, middle, large = (
        TileShape(64, wide, deep, 4, 3),
        TileShape(128, wide, deep, 4, 3),
        TileShape(256, wide, deep, 8, 4),
    )
    programs = n * math.prod(places) * parities**2 // 128 * (co // wide)
    if programs < 3 * 132 or deep < 64:  # too few to fill a GPU, or the epilogue takes longer than the product
        shapes = [small, middle, large]
    elif co % 256 == 0 and programs >= 512 and not has_upstream:
        shapes = [TileShape(128, 256, deep, 8, 3), middle, large, small]
    else:
        shapes = [middle, large, small, TileShape(256, wide, min(deep, 32), 4, 3)]
    shapes += [TileShape(128, wide, deep, 4, 4), TileShape(128, 64, deep, 4, 4)]
    return [shape for shape in dict.fromkeys(shapes) if choose_patch(*places, shape.rows)]


def image_boxes(x: Tensor, patch: Patch, columns: int, step: int) -> TensorDescriptor:
    """Return a descriptor by which a kernel loads or stores patches of a contiguous x [N, B, H, W, C].

    Args:
        columns: Channels in a box.
        step: Distance of a patch's places in x, 1 or 2. For 2, H and W must be even, and the descriptor is that of a
            view [N*B, H/2, 2, W/2, 2*C] of x, in which every other place is a neighbour.
    """
    n, b, h, w, c = x.shape
    images, height, width = patch
    if step == 1:
        return TensorDescriptor(x, [n * b, h, w, c], [h * w * c, w * c, c, 1], [images, height, width, columns])
    strides = [h * w * c, 2 * w * c, w * c, 2 * c, 1]
    return TensorDescriptor(x, [n * b, h // 2, 2, w // 2, 2 * c], strides, [images, height, 1, width, columns])


def gather_patches(
    x: Tensor, w: Tensor, y: Tensor, producer: Tensor | None, patch: Patch, shape: TileShape, grid: tuple[int, int, int],
    of_gradient: bool, options: Mapping[str, Any],
) -> None:  # fmt: skip
    """Launch `gather_patch_kernel` for a convolution of x [N, B, H, W, CI]; its output goes to y [N, B, OH, OW, CO].

    Args:
        w: [N, k*k, CI, CO] the taps, or [N, k*k, CO, CI] if `of_gradient`.
        producer: The output of the operation whose backward pass is computed at the end of the kernel; None without
            one.
        patch, shape: The patch and the tile shape with as many rows as the patch has places.
        options: The arguments that the kernel shares with `gather_kernel`.
    """
    step, spacing = (1, 2) if options["TRANSPOSED"] else (options["STRIDE"], 1)
    outputs = image_boxes(y, patch, shape.columns, spacing)
    inputs = outputs if producer is None else image_boxes(producer.view(y.shape), patch, shape.columns, spacing)
    w_box = [shape.columns, shape.depth] if of_gradient else [shape.depth, shape.columns]
    weights = TensorDescriptor(w, [w.numel() // w.shape[-1], w.shape[-1]], [w.shape[-1], 1], w_box)
    gather_patch_kernel[grid](
        image_boxes(x, patch, shape.depth, step), weights, outputs, inputs, **options, OF_GRADIENT=of_gradient,
        IMAGES=patch.images, PH=patch.height, PW=patch.width,
    )  # fmt: skip
