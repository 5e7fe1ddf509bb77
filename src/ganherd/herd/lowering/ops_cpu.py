"""The library of operations for a CPU: those of `ops`, with faster batch norms and convolutions next to images.

Inputs are `[N, B, …]` for N members (GANs) and B samples. PyTorch computes variances without vector instructions, and
its convolutions with few output channels are several times slower than those with few input channels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.ops import Bias, Fusions, apply_to_images, divide, dropout, instance_norm, linear, rows_of

__all__ = [
    "apply_to_images", "batch_norm", "conv2d", "conv_transpose2d", "divide", "dropout", "instance_norm", "linear", "rows_of",
]  # fmt: skip

_FEW_CHANNELS = 4  # images have at most this many channels
_Settings = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # stride, padding and dilation of a convolution


class BatchMoments(torch.autograd.Function):
    """Compute the variance and the mean of x over these axes, which stay with length 1.

    Mean and mean square of the deviations are computed in two passes over x, both with vector instructions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, over: list[int]) -> tuple[Tensor, Tensor]:
        mean = _mean(x, over)
        var = _mean((x - mean).square_(), over)
        ctx.save_for_backward(x, mean)
        return var, mean

    @staticmethod
    def backward(ctx: Any, d_var: Tensor, d_mean: Tensor) -> tuple[Tensor, None]:
        x, mean = ctx.saved_tensors
        number = x.numel() // mean.numel()
        return torch.addcmul(d_mean / number, x - mean, d_var * (2 / number)), None


def _mean(x: Tensor, over: list[int]) -> Tensor:
    """Return the mean of x over these axes, which stay with length 1; all but the first must be the last axes of x.

    The first axis is averaged separately: PyTorch would add all numbers one after another, and two shorter sums are
    rounded less.
    """
    return x.mean(over[1:], keepdim=True).mean(over[0], keepdim=True) if over[1:] else x.mean(over, keepdim=True)


def _moments(x: Tensor, over: list[int]) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean of x over these axes, like `ops.var_mean`."""
    var, mean = BatchMoments.apply(x, over)  # type: ignore[no-untyped-call]
    return var.squeeze(over), mean.squeeze(over)


batch_norm = partial(ops.batch_norm, moments=_moments)


class ImageConv(torch.autograd.Function):
    """Convolve images: x [N, B, C, H, W], weight [N, O, C, k, k], bias [N, O] -> [N, B, O, H', W'].

    The input gradient, which has few channels, is computed by the faster `ImageConvTranspose`. Differentiable twice.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Bias, settings: _Settings) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = settings
        biases = bias if bias is not None else [None] * len(x)
        return torch.stack([F.conv2d(*one, *settings) for one in zip(x, weight, biases, strict=True)])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            _image_conv_transpose(dy, weight, x.shape[3:], ctx.settings) if needs_x else None,
            _weight_gradients(x, weight, dy, ctx.settings) if needs_weight else None,
            dy.sum((1, 3, 4)) if needs_bias else None,
            None,
        )


class ImageConvTranspose(torch.autograd.Function):
    """Run transposed convolutions to images: x [N, B, I, H, W], weight [N, I, C, k, k] -> [N, B, C, *size].

    A product computes what each pixel of x adds to a k × k patch of the result, and `F.fold` adds the patches.
    Differentiable twice.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, size: tuple[int, int], settings: _Settings) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = settings
        stride, padding, dilation = settings
        rows, pixels, kernel = weight.flatten(2).transpose(1, 2), x.flatten(3), weight.shape[3:]
        # One member after another: its products [B, C * k * k, H * W] may fit into the processor's cache.
        each = zip(rows, pixels, strict=True)
        products = (torch.bmm(a.expand(len(b), -1, -1), b) for a, b in each)  # `a @ b` would copy b
        return torch.stack([F.fold(one, size, kernel, dilation, padding, stride) for one in products])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _, _ = ctx.needs_input_grad
        return (
            _image_conv(dy, weight, None, ctx.settings) if needs_x else None,
            _weight_gradients(dy, weight, x, ctx.settings) if needs_weight else None,
            None,
            None,
        )


def _image_conv(x: Tensor, weight: Tensor, bias: Bias, settings: _Settings) -> Tensor:
    """Run `ImageConv`."""
    result: Tensor = ImageConv.apply(x, weight, bias, settings)  # type: ignore[no-untyped-call]
    return result


def _image_conv_transpose(x: Tensor, weight: Tensor, size: tuple[int, ...], settings: _Settings) -> Tensor:
    """Run `ImageConvTranspose`."""
    result: Tensor = ImageConvTranspose.apply(x, weight, tuple(size), settings)  # type: ignore[no-untyped-call]
    return result


def _weight_gradients(x: Tensor, weight: Tensor, dy: Tensor, settings: _Settings) -> Tensor:
    """Return the weight gradients [N, …] of convolutions with inputs x and output gradients dy."""
    only_weight = (False, [0, 0], 1, [False, True, False])  # not transposed, no output padding, one group
    gradient = torch.ops.aten.convolution_backward
    each = zip(dy, x, weight, strict=True)
    return ops.join_members([gradient(*one, None, *settings, *only_weight)[1] for one in each])


def conv2d(x: Tensor, weight: Tensor, bias: Bias, like: nn.Conv2d, fusions: Fusions = Fusions()) -> Tensor:
    """Run convolutions; see `ops.conv2d`."""
    if not _is_simple(x, like) or isinstance(like.padding, str) or fusions.upsample:
        return ops.conv2d(x, weight, bias, like, fusions)
    if x.shape[3:] == weight.shape[3:] and _pair(like.padding) == (0, 0):  # one position: a product
        out = linear(x.flatten(2), weight.flatten(2), bias)[..., None, None]
    elif x.requires_grad and weight.shape[2] <= _FEW_CHANNELS < weight.shape[1]:
        out = _image_conv(x, weight, bias, _settings(like))
    else:
        return ops.conv2d(x, weight, bias, like, fusions)
    return fusions.finish(out)


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Bias, like: nn.ConvTranspose2d, fusions: Fusions = Fusions()
) -> Tensor:
    """Run transposed convolutions; see `ops.conv_transpose2d`."""
    if not _is_simple(x, like):
        return ops.conv_transpose2d(x, weight, bias, like, fusions)
    stride, padding, dilation = settings = _settings(like)
    extra = _pair(like.output_padding)
    geometry = zip(x.shape[3:], stride, padding, dilation, weight.shape[3:], extra, strict=True)
    size = tuple((n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, s, p, d, k, more in geometry)
    # With more extra pixels than the stride, a kernel would fit once more into the output than there are inputs.
    fits = all(more < s for more, s in zip(extra, stride, strict=True))
    if x.shape[3:] == (1, 1) and size == weight.shape[3:] and padding == (0, 0):  # one position: a product
        out = linear(x.flatten(2), weight.flatten(2).transpose(1, 2), None).unflatten(2, weight.shape[2:])
    elif fits and weight.shape[2] <= _FEW_CHANNELS < weight.shape[1]:
        out = _image_conv_transpose(x, weight, size, settings)
    else:
        return ops.conv_transpose2d(x, weight, bias, like, fusions)
    out = out if bias is None else out + ops.per_channel(bias, out)
    return fusions.finish(out)


def _is_simple(x: Tensor, like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether the fast paths here support a convolution of x.

    x must be [N, B, C, H, W], and the convolution must pad with zeros, have one group and compute in full precision.
    """
    is_low = torch.is_autocast_enabled(x.device.type)
    return x.dim() == 5 and like.groups == 1 and like.padding_mode == "zeros" and not is_low


def _settings(like: nn.Conv2d | nn.ConvTranspose2d) -> _Settings:
    """Return stride, padding and dilation of a layer, each as a pair (height, width)."""
    return _pair(like.stride), _pair(like.padding), _pair(like.dilation)


def _pair(value: Any) -> tuple[int, int]:
    """Return a setting as a pair (height, width)."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])
