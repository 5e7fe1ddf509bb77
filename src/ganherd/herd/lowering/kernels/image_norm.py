"""Run a batch norm whose gain and shift differ between images, fused with the activation after it.

This is the batch norm of class-conditional generators, which look up a gain and a shift by the label of each image.
Inputs are `[N, B, P, C]`: N members (GANs), B images, P pixels and C channels. In the formulas x̂ is the normalised
input (x − mean) / deviation; z = x̂ · gain + shift is the activation's input, and dz its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.kernels.norm import Running, channels_in_tile, finish_statistics, statistics

_ROWS = 64  # rows in a tile


@triton.jit
def _apply_per_image(x, mean, inv, gain, shift, y, B, P, C, SLOPE: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr):
    """Compute y = act(x̂ · gain + shift) for a tile of x [N, B, P, C]; each image has its own gain and shift [N, B, C].

    `mean` and `inv` [N, C] are the batch mean and 1/deviation of each channel.
    """
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (row < B * P)[:, None] & (c < C)[None, :]
    mu = tl.load(mean + n * C + c, mask=c < C, other=0.0)
    iv = tl.load(inv + n * C + c, mask=c < C, other=0.0)
    image = (n * B + row // P)[:, None] * C + c[None, :]
    place = (n * B * P + row)[:, None] * C + c[None, :]
    value = (tl.load(x + place, mask=known, other=0.0).to(tl.float32) - mu[None, :]) * iv[None, :]
    value = value * tl.load(gain + image, mask=known, other=0.0) + tl.load(shift + image, mask=known, other=0.0)
    value = tl.where(value > 0, value, value * SLOPE)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=known)


@triton.jit
def _sums_per_image(
    x, dy, mean, inv, gain, shift, sums, B, P, C, BLOCK,
    SLOPE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of shift and gain, Σ dz and Σ dz·x̂ over the pixels of each image.

    dz is the gradient of the activation's input, computed from the output's gradient dy. The sums Σ dz go to `sums`
    [N, B, C], the sums Σ dz·x̂ to the same place BLOCK numbers later.
    """
    b = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    mu = tl.load(mean + n * C + c, mask=c < C, other=0.0)
    iv = tl.load(inv + n * C + c, mask=c < C, other=0.0)
    image = (n * B + b) * C + c
    a = tl.load(gain + image, mask=c < C, other=0.0)
    s = tl.load(shift + image, mask=c < C, other=0.0)
    total = tl.zeros((BC,), tl.float32)
    weighted = tl.zeros((BC,), tl.float32)
    for tile in range(TILES):
        p = tile * ROWS + tl.arange(0, ROWS)
        known = (p < P)[:, None] & (c < C)[None, :]
        place = ((n * B + b) * P + p)[:, None] * C + c[None, :]
        value = (tl.load(x + place, mask=known, other=0.0).to(tl.float32) - mu[None, :]) * iv[None, :]
        grad = tl.load(dy + place, mask=known, other=0.0).to(tl.float32)
        grad = tl.where(value * a[None, :] + s[None, :] > 0, grad, grad * SLOPE)
        total += tl.sum(grad, 0)
        weighted += tl.sum(grad * value, 0)
    tl.store(sums + image, total, mask=c < C)
    tl.store(sums + BLOCK + image, weighted, mask=c < C)


@triton.jit
def _backward_per_image(
    x, dy, mean, inv, gain, shift, totals, dx, B, P, C, SLOPE: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr
):
    """Compute the input gradient dx = (gain · dz − mean(gain · dz) − x̂ · mean(gain · dz · x̂)) / deviation for a tile.

    dz is the gradient of the activation's input. The means are over the B · P pixels of all images of a member; their
    sums Σ gain · dz and Σ gain · dz · x̂ are given as totals [2, N, C].
    """
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (row < B * P)[:, None] & (c < C)[None, :]
    here = n * C + c
    mu = tl.load(mean + here, mask=c < C, other=0.0)
    iv = tl.load(inv + here, mask=c < C, other=0.0)
    m1 = tl.load(totals + here, mask=c < C, other=0.0) / (B * P)
    m2 = tl.load(totals + tl.num_programs(2).to(tl.int64) * C + here, mask=c < C, other=0.0) / (B * P)
    image = (n * B + row // P)[:, None] * C + c[None, :]
    place = (n * B * P + row)[:, None] * C + c[None, :]
    a = tl.load(gain + image, mask=known, other=0.0)
    value = (tl.load(x + place, mask=known, other=0.0).to(tl.float32) - mu[None, :]) * iv[None, :]
    grad = tl.load(dy + place, mask=known, other=0.0).to(tl.float32)
    above = value * a + tl.load(shift + image, mask=known, other=0.0) > 0
    grad = tl.where(above, grad, grad * SLOPE) * a
    out = iv[None, :] * (grad - m1[None, :] - value * m2[None, :])
    tl.store(dx + place, out.to(dx.dtype.element_ty), mask=known)


class MemberImageNorm(torch.autograd.Function):
    """Compute act(batch_norm(x) · gain + shift) with the statistics of this batch. Differentiable once.

    Args:
        x: [N, B, P, C], contiguous.
        gain, shift: float32 [N, B, C], one value for each image and channel.
        slope: Slope of the activation below 0; 1 means no activation.
        running: Contiguous running statistics, updated in place with `momentum`.
        stats: Partial statistics of x from `statistics`, if the operation that computed x has them already.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, eps: float, slope: float, running: Running, momentum: float,
        stats: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        n, b, p, c = x.shape
        stats = statistics(x.flatten(1, 2)) if stats is None else stats
        mean, inv, *_ = table = finish_statistics(stats, b * p, eps, running, momentum)
        ctx.save_for_backward(x, gain, shift, table)
        ctx.slope = slope
        y = torch.empty_like(x)
        channels = channels_in_tile(c)
        grid = (triton.cdiv(b * p, _ROWS), triton.cdiv(c, channels), n)
        _apply_per_image[grid](x, mean, inv, gain, shift, y, b, p, c, SLOPE=slope, ROWS=_ROWS, BC=channels)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, gain, shift, table = ctx.saved_tensors
        mean, inv, *_ = table
        n, b, p, c = x.shape
        dy, channels = dy.contiguous(), channels_in_tile(c)
        across = triton.cdiv(c, channels)
        sums = torch.empty(2, n, b, c, dtype=torch.float32, device=x.device)
        rows = min(_ROWS, triton.next_power_of_2(p))
        _sums_per_image[(b, across, n)](
            x, dy, mean, inv, gain, shift, sums, b, p, c, sums[0].numel(),
            SLOPE=ctx.slope, ROWS=rows, TILES=triton.cdiv(p, rows), BC=channels,
        )  # fmt: skip
        dx = torch.empty_like(x)
        _backward_per_image[(triton.cdiv(b * p, _ROWS), across, n)](
            x, dy, mean, inv, gain, shift, (sums * gain).sum(2), dx, b, p, c, SLOPE=ctx.slope, ROWS=_ROWS, BC=channels
        )
        return dx, sums[1], sums[0], *(None,) * 5
