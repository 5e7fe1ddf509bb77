"""Halve and double the sides of images `[M, H, W, C]`, where M counts the images of all members (GANs).

Halving replaces 2 × 2 pixels by their sum times a factor (average pooling for the factor 1/4). Doubling replaces a
pixel by 2 × 2 copies times a factor (nearest upsampling for the factor 1). Each of the two is the gradient of the
other. There is also bilinear upsampling by 2, with its gradient. PyTorch's kernels for images with channels last take
several times as long, and its bilinear kernels for images with channels first more than a hundred times as long.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32  # pixels in a tile


@triton.jit
def _halve(x, y, COUNT, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SCALE, ROWS: tl.constexpr, BC: tl.constexpr):
    """Compute y [M, H, W, C] as SCALE times the sums of 2 × 2 pixels of x [M, 2 H, 2 W, C]; y has COUNT pixels."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = (row < COUNT)[:, None] & (c < C)[None, :]
    # The upper left one of the four pixels: row // W is m * H + y, and two lines of x have 4 W pixels.
    first = (row // W) * (4 * W) + (row % W) * 2
    total = tl.zeros((ROWS, BC), tl.float32)
    for dy in tl.static_range(2):
        for dx in tl.static_range(2):
            place = (first + dy * 2 * W + dx)[:, None] * C + c[None, :]
            total += tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y + row[:, None] * C + c[None, :], (total * SCALE).to(y.dtype.element_ty), mask=known)


@triton.jit
def _double(
    x, other, y, COUNT, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SCALE, ADDS: tl.constexpr, ROWS: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Compute y [M, 2 H, 2 W, C] as 2 × 2 copies of each pixel of x [M, H, W, C], times SCALE; y has COUNT pixels.

    ADDS: add `other`, of the shape of y, to the result.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = (row < COUNT)[:, None] & (c < C)[None, :]
    source = (row // (4 * W)) * W + (row % (2 * W)) // 2
    value = tl.load(x + source[:, None] * C + c[None, :], mask=known, other=0.0).to(tl.float32) * SCALE
    place = row[:, None] * C + c[None, :]
    if ADDS:
        value += tl.load(other + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=known)


@triton.jit
def _upsample_bilinear(
    x, y, COUNT, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SCALE, ROWS: tl.constexpr, BC: tl.constexpr
):
    """Compute y [M, 2 H, 2 W, C] from x [M, H, W, C] by bilinear interpolation; y has COUNT pixels.

    Along each axis an output pixel is 3/4 of the input pixel that contains it plus 1/4 of the nearer neighbour of that
    input pixel. At the border, where there is no neighbour, the input pixel itself takes its place.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = (row < COUNT)[:, None] & (c < C)[None, :]
    image, oy, ox = row // (4 * H * W), (row // (2 * W)) % (2 * H), row % (2 * W)
    total = tl.zeros((ROWS, BC), tl.float32)
    for dy in tl.static_range(2):
        iy = oy // 2 + dy * (2 * (oy % 2) - 1)
        iy = tl.minimum(tl.maximum(iy, 0), H - 1)
        for dx in tl.static_range(2):
            ix = ox // 2 + dx * (2 * (ox % 2) - 1)
            ix = tl.minimum(tl.maximum(ix, 0), W - 1)
            share = (0.75 - 0.5 * dy) * (0.75 - 0.5 * dx)
            place = ((image * H + iy) * W + ix)[:, None] * C + c[None, :]
            total += share * tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y + row[:, None] * C + c[None, :], (total * SCALE).to(y.dtype.element_ty), mask=known)


@triton.jit
def _upsample_bilinear_backward(
    x, y, COUNT, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SCALE, ROWS: tl.constexpr, BC: tl.constexpr
):
    """Compute the gradient of `_upsample_bilinear`: y [M, H, W, C] for the input from x [M, 2 H, 2 W, C] of the output.

    Along each axis, four output pixels of the upsampling read the same input pixel, with the factors 1/4, 3/4, 3/4 and
    1/4. At the border there are only three of them, and the outermost one counts twice. y has COUNT pixels.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = (row < COUNT)[:, None] & (c < C)[None, :]
    image, oy, ox = row // (H * W), (row // W) % H, row % W
    total = tl.zeros((ROWS, BC), tl.float32)
    for dy in tl.static_range(4):
        iy = tl.minimum(tl.maximum(2 * oy - 1 + dy, 0), 2 * H - 1)
        for dx in tl.static_range(4):
            ix = tl.minimum(tl.maximum(2 * ox - 1 + dx, 0), 2 * W - 1)
            share = (0.25 if dy % 3 == 0 else 0.75) * (0.25 if dx % 3 == 0 else 0.75)
            place = ((image * 2 * H + iy) * 2 * W + ix)[:, None] * C + c[None, :]
            total += share * tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y + row[:, None] * C + c[None, :], (total * SCALE).to(y.dtype.element_ty), mask=known)


def _launch(kernel: Any, y: Tensor, small: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Launch a kernel that computes every pixel of y, and return y.

    Args:
        small: The input or output with the smaller images, from which the kernel gets H, W and C.
        arguments: The kernel's tensors before y, then its SCALE.
    """
    _, h, w, c = small.shape
    count, channels = y.numel() // c, max(16, min(128, triton.next_power_of_2(c)))
    grid = (triton.cdiv(count, _ROWS), triton.cdiv(c, channels))
    kernel[grid](*arguments[:-1], y, count, h, w, c, arguments[-1], **options, ROWS=_ROWS, BC=channels)
    return y


class Halve(torch.autograd.Function):
    """Compute `scale` times the sums of 2 × 2 pixels of a contiguous x [M, H, W, C] with even sides: [M, H/2, W/2, C].

    Differentiable any number of times.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        m, h, w, c = x.shape
        y = x.new_empty(m, h // 2, w // 2, c)
        return _launch(_halve, y, y, x, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return Double.apply(grad.contiguous(), ctx.scale), None


class Double(torch.autograd.Function):
    """Compute 2 × 2 copies of each pixel of a contiguous x [M, H, W, C], times `scale`: [M, 2 H, 2 W, C].

    Differentiable any number of times.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        m, h, w, c = x.shape
        return _launch(_double, x.new_empty(m, 2 * h, 2 * w, c), x, x, x, scale, ADDS=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return Halve.apply(grad.contiguous(), ctx.scale), None


class UpsampleBilinearBackward(torch.autograd.Function):
    """Compute the gradient of `UpsampleBilinear`'s input from that of its output, a contiguous x [M, 2 H, 2 W, C].

    Differentiable any number of times.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        m, h, w, c = x.shape
        y = x.new_empty(m, h // 2, w // 2, c)
        return _launch(_upsample_bilinear_backward, y, y, x, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return UpsampleBilinear.apply(grad.contiguous())


class UpsampleBilinear(torch.autograd.Function):
    """Upsample a contiguous x [M, H, W, C] bilinearly to [M, 2 H, 2 W, C]. Differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        m, h, w, c = x.shape
        return _launch(_upsample_bilinear, x.new_empty(m, 2 * h, 2 * w, c), x, x, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return UpsampleBilinearBackward.apply(grad.contiguous())


class AddDoubled(torch.autograd.Function):
    """Add x [M, H, W, C], doubled by repeating pixels, to `other` [M, 2 H, 2 W, C].

    Differentiable any number of times.
    """

    @staticmethod
    def forward(ctx: Any, other: Tensor, x: Tensor) -> Tensor:
        return _launch(_double, torch.empty_like(other), x, x, other, 1.0, ADDS=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, Any]:
        return grad, Halve.apply(grad.contiguous(), 1.0) if ctx.needs_input_grad[1] else None
