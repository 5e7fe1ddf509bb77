"""Halve and double images `[M, H, W, C]`: 2 × 2 pixels become their scaled sum, or a pixel becomes 2 × 2 scaled copies.

Average pooling and nearest upsampling are these two, and each is the gradient of the other. The same holds for bilinear upsampling
and the sums that are its gradient. PyTorch's kernels for images with channels last take several times as long, and its bilinear
ones for other images more than a hundred times as long.
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
    """Compute y [M, H, W, C] from x [M, 2 H, 2 W, C]; COUNT pixels in y."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = (row < COUNT)[:, None] & (c < C)[None, :]
    first = (row // W) * (4 * W) + (row % W) * 2  # row // W is m * H + y, and a row of pixels of x has 2 W
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
    """Compute y [M, 2 H, 2 W, C] from x [M, H, W, C]; COUNT pixels in y. ADDS: plus `other`, of the shape of y."""
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
    """Compute y [M, 2 H, 2 W, C] from x [M, H, W, C] bilinearly; COUNT pixels in y.

    Along each axis an output pixel is 3/4 of the input pixel that contains it plus 1/4 of the nearer neighbour, which at the border
    is the pixel itself.
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
    """Compute y [M, H, W, C] from x [M, 2 H, 2 W, C] as the gradient of `_upsample_bilinear`; COUNT pixels in y.

    Along each axis four output pixels read an input pixel. At the border there are three, and the outermost counts twice.
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
    """Launch a kernel for every pixel of y; `small` is the smaller of its images."""
    _, h, w, c = small.shape
    count, channels = y.numel() // c, max(16, min(128, triton.next_power_of_2(c)))
    grid = (triton.cdiv(count, _ROWS), triton.cdiv(c, channels))
    kernel[grid](*arguments[:-1], y, count, h, w, c, arguments[-1], **options, ROWS=_ROWS, BC=channels)
    return y


class Halve(torch.autograd.Function):
    """The scaled sums of 2 × 2 pixels of a contiguous x [M, H, W, C] with even sides. Differentiable any number of times."""

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
    """Four scaled copies of each pixel of a contiguous x [M, H, W, C]. Differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        m, h, w, c = x.shape
        return _launch(_double, x.new_empty(m, 2 * h, 2 * w, c), x, x, x, scale, ADDS=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
        return Halve.apply(grad.contiguous(), ctx.scale), None


class UpsampleBilinearBackward(torch.autograd.Function):
    """The gradient of `UpsampleBilinear`, of a contiguous x [M, 2 H, 2 W, C]. Differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        m, h, w, c = x.shape
        y = x.new_empty(m, h // 2, w // 2, c)
        return _launch(_upsample_bilinear_backward, y, y, x, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return UpsampleBilinear.apply(grad.contiguous())


class UpsampleBilinear(torch.autograd.Function):
    """Bilinear upsampling of a contiguous x [M, H, W, C] by 2. Differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        m, h, w, c = x.shape
        return _launch(_upsample_bilinear, x.new_empty(m, 2 * h, 2 * w, c), x, x, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return UpsampleBilinearBackward.apply(grad.contiguous())


class AddDoubled(torch.autograd.Function):
    """other [M, 2 H, 2 W, C] plus x [M, H, W, C] doubled. Differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, other: Tensor, x: Tensor) -> Tensor:
        return _launch(_double, torch.empty_like(other), x, x, other, 1.0, ADDS=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, Any]:
        return grad, Halve.apply(grad.contiguous(), 1.0) if ctx.needs_input_grad[1] else None
