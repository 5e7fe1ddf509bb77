"""The library of operations by Triton kernels on a GPU: functions of the same names and results as those of `ops`.

Images of N members (GANs) are `[N, B, C, H, W]` between operations, but stored with channels last in memory, which the
kernels read. An epilogue is an activation and a dropout that the kernel of a convolution or linear layer applies to its
output.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.kernels.convolution.conv_groups import (
    groups_as_members,
    one_group,
    products_of_groups,
    weighted_sums,
)
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.image_gradients import has_few_outputs
from ganherd.herd.lowering.kernels.convolution.member_conv import MemberConv, Source
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.herd.lowering.kernels.image_norm import MemberImageNorm
from ganherd.herd.lowering.kernels.linear import MemberLinear
from ganherd.herd.lowering.kernels.norm import MemberNorm, NormOnLoad
from ganherd.herd.lowering.kernels.random_bits import MemberDropout
from ganherd.herd.lowering.kernels.resize import AddDoubled, Double, Halve, UpsampleBilinear
from ganherd.herd.lowering.kernels.row_lookup import MemberRowsByKernel
from ganherd.herd.lowering.kernels.spectral_kernel import MemberDivide
from ganherd.herd.lowering.ops import Bias, Epilogue, Fusions

# Layers with more floating-point operations do not normalise their input when they load it, which would slow them down.
_LIGHT = 8e9
_MAX_GRID = 65_535  # most programs along the member axis of a launch grid
_GROUP_WIDTH = 16  # least input and output channels of a convolution's group that runs by a kernel
FUSES_EPILOGUES = True  # see `FusionPlan`

# Attributes that an operation sets on its output tensor, for the only operation that reads it.
_STATS = "statistics"  # partial statistics of the output, for a batch norm
_EPILOGUE = "epilogue"  # the epilogue of a convolution, whose backward pass the reader computes with its own
_NORM = "norm_on_load"  # the batch norm that computed the output, for a convolution; see `NormOnLoad`


def _dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which an operation on x computes: that of autocast if it is active, otherwise that of x."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _channels_last(x: Tensor) -> Tensor:
    """Return images x [N, B, C, H, W] as a contiguous tensor [N, B, H, W, C]."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def linear(x: Tensor, weight: Tensor, bias: Bias, fusions: Fusions = Fusions()) -> Tensor:
    """Run linear layers; see `ops.linear`.

    They run by PyTorch's batched product if their sizes suit it (`is_aligned`), otherwise as 1×1 convolutions by a
    kernel, which is as fast with any size. If the layer follows a flattening of images or precedes an unflattening to
    images, these are stored with channels last; the kernel reads the weights in the corresponding order, so that the
    images need not be permuted.
    """
    images, shape = fusions.flatten and x.dim() == 5, fusions.unflatten
    if (x.dim() != 3 and not images) or x.dtype == torch.float64:
        return ops.linear(x, weight, bias, fusions)
    if shape and len(shape) != 3:
        out = linear(x, weight, bias, Fusions(fusions.flatten)).unflatten(2, shape)
        return fusions.finish(out)
    if not images and not shape and x.dtype == _dtype(x) and is_aligned(x.dtype, *x.shape[1:], weight.shape[1]):
        if bias is None:
            return ops.linear(x, weight, bias, fusions)
        out = MemberLinear.apply(x, weight, bias)  # the batched product reads the weights as they are stored
        return fusions.finish(out)
    layout = WeightLayout(1, places_in=math.prod(x.shape[3:]), places_out=math.prod(shape[1:]))
    source = _source(x)
    x = _channels_last(x).flatten(2) if images else x
    if shape and bias is not None:
        bias = bias.unflatten(1, (shape[0], -1)).transpose(1, 2).flatten(1)
    spec = _conv_spec((1, 1), layout, 1, 0, False)
    out = _run(x[..., None, None], weight[..., None, None], bias, spec, fusions, source)
    stats = getattr(out, _STATS)
    out = out.flatten(2)
    if shape:  # columns are (place, channel), so each place has partial statistics of all channels
        out = out.unflatten(2, (*shape[1:], shape[0])).permute(0, 1, 4, 2, 3)
        stats = None if stats is None else stats.view(3, stats.shape[1], -1, shape[0])
    return _annotate(out, stats, fusions.epilogue)


def is_aligned(dtype: torch.dtype, *sizes: int) -> bool:
    """Return whether PyTorch's batched product is faster for a linear layer than a kernel.

    Args:
        sizes: Samples, input features and output features.
    """
    return dtype == torch.float32 and all(size % 4 == 0 for size in sizes)


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    """Apply a (leaky) ReLU, then dropout; see `ops.dropout`."""
    if p >= 1.0:
        return x * 0.0
    if x.dim() == 5:
        rows = _channels_last(x)
        return MemberDropout.apply(rows.flatten(2, 3), keys, p, slope).view(rows.shape).permute(0, 1, 4, 2, 3)
    flat = x.contiguous().flatten(1)[:, :, None, None]  # the counter runs over the elements in memory order
    return MemberDropout.apply(flat, keys, p, slope).view(x.shape)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: ops.RunningStats | None,
    reader: nn.Module | None = None, doubled: bool = False,
) -> tuple[Tensor, ops.RunningStats | None]:  # fmt: skip
    """Apply a batch norm and a (leaky) ReLU; see `ops.batch_norm`. Running statistics change in place.

    If `reader` does little work (`_is_light`), x itself is returned, and the kernel of `reader` normalises it when it
    loads it.

    Args:
        reader: The only layer that reads the output, if its kernel can normalise on load (`reads_images`); otherwise
            None.
        doubled: Whether an upsampling comes before `reader`.
    """
    averages = running is not None and running.momentum is None  # no kernel for a plain average over all batches
    if x.dtype == torch.float64 or averages:
        return ops.batch_norm(x, weight, bias, eps, slope, running)
    if running and not all(value.is_contiguous() for value in (running.mean, running.var, running.count)):
        mean, var, count = (value.contiguous() for value in (running.mean, running.var, running.count))
        running = ops.RunningStats(mean, var, count, running.momentum)
    epilogue: Epilogue | None = getattr(x, _EPILOGUE, None)
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    if bias is None and weight is not None:
        bias = torch.zeros_like(weight)
    rows = x.movedim(2, -1).contiguous()  # channels last
    buffers = (running.mean, running.var, running.count) if running else None  # those of the state, updated in place
    momentum = running.momentum if running and running.momentum is not None else 0.0
    stats, places = getattr(x, _STATS, None), math.prod(x.shape[3:])
    link: list[NormOnLoad] | None = [] if reader is not None and x.dim() == 5 else None
    pending = link is not None and not doubled and rows.dtype == _dtype(rows) and _is_light(rows, reader)
    y = MemberNorm.apply(
        rows.flatten(1, -2), weight, bias, eps, slope, buffers, momentum, stats, epilogue, places, link, pending
    )
    out = y.view(rows.shape).movedim(-1, 2)
    if link:
        setattr(out, _NORM, link[0])
    return out, running


def image_norm(
    x: Tensor, gain: Tensor, shift: Tensor, eps: float, slope: float, running: ops.RunningStats | None
) -> Tensor | None:
    """Return act(batch_norm(x) · gain + shift), or None if no kernel supports these inputs.

    Running statistics change in place.

    Args:
        x: [N, B, C, H, W].
        gain, shift: [N, B, C, 1, 1], one value for each image and channel.
        slope: Slope of the activation below 0; 1 means no activation.
        running: Running statistics; None: there are none.
    """
    expected = (*x.shape[:3], 1, 1)
    if x.dim() != 5 or x.dtype == torch.float64 or getattr(x, _EPILOGUE, None) is not None:
        return None
    if gain.shape != expected or shift.shape != expected or (running is not None and running.momentum is None):
        return None
    buffers = (running.mean, running.var, running.count) if running else None
    if buffers and not all(value.is_contiguous() for value in buffers):
        return None
    momentum = running.momentum if running and running.momentum is not None else 0.0
    rows = x.movedim(2, -1).contiguous()  # channels last
    values = (value.flatten(2).float().contiguous() for value in (gain, shift))
    stats = getattr(x, _STATS, None)
    y = MemberImageNorm.apply(rows.flatten(2, 3), *values, eps, slope, buffers, momentum, stats)
    return y.view(rows.shape).movedim(-1, 2)


def instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Apply an instance norm (see `ops.instance_norm`) as a batch norm of N · B members with one sample each."""
    n, b = x.shape[:2]
    if n * b > _MAX_GRID:
        return ops.instance_norm(x, weight, bias, eps)
    weight = None if weight is None else weight[:, None].expand(n, b, -1).flatten(0, 1)
    bias = None if bias is None else bias[:, None].expand(n, b, -1).flatten(0, 1)
    out, _ = batch_norm(x.flatten(0, 1)[:, None], weight, bias, eps, 1.0, None)
    return out.view(x.shape)


def rows_of(weight: Tensor, y: Tensor) -> Tensor:
    """Return rows y [N, B] of tables [N, R, C], [N, B, C]; see `ops.rows_of`."""
    return ops.rows_of(weight, y) if weight.dtype == torch.float64 else MemberRowsByKernel.apply(weight, y)


def apply_to_images(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer without parameters, e.g. an upsampling, to images [N, B, C, H, W]; by a kernel if there is one."""
    if x.dim() != 5 or x.dtype == torch.float64:
        return ops.apply_to_images(layer, x)
    if ops.doubles(layer):
        return _double(x)
    if ops.doubles(layer, "bilinear"):
        return _resized(UpsampleBilinear.apply(_images(x)), x)
    return _halve(x) if ops.halves(layer) and _has_even_sides(x) else ops.apply_to_images(layer, x)


def _images(x: Tensor) -> Tensor:
    """Return the images [N, B, C, H, W] of all members as [N * B, H, W, C], contiguous."""
    return _channels_last(x).flatten(0, 1)


def _resized(out: Tensor, x: Tensor) -> Tensor:
    """Return images [N * B, H, W, C] that were computed from x [N, B, …] as [N, B, C, H, W]."""
    return out.unflatten(0, x.shape[:2]).permute(0, 1, 4, 2, 3)


def _double(x: Tensor) -> Tensor:
    """Double the sides of images [N, B, C, H, W] by repeating pixels."""
    return _resized(Double.apply(_images(x), 1.0), x)


def _halve(x: Tensor) -> Tensor:
    """Average every 2×2 pixels of images [N, B, C, H, W]."""
    return _resized(Halve.apply(_images(x), 0.25), x)


def _has_even_sides(x: Tensor) -> bool:
    return x.shape[3] % 2 == 0 and x.shape[4] % 2 == 0


def add_doubled(other: Tensor, x: Tensor) -> Tensor | None:
    """Return `other` [N, B, C, 2 H, 2 W] plus x [N, B, C, H, W] upsampled by 2; None if no kernel supports them."""
    if x.dim() != 5:
        return None
    n, b, c, h, w = x.shape
    if other.shape != (n, b, c, 2 * h, 2 * w) or x.dtype != other.dtype or x.dtype == torch.float64:
        return None
    out = AddDoubled.apply(_channels_last(other).flatten(0, 1), _channels_last(x).flatten(0, 1))
    return out.unflatten(0, (n, b)).permute(0, 1, 4, 2, 3)


def _is_light(rows: Tensor, reader: nn.Module | None) -> bool:
    """Return whether a layer does so little work on its input that it should normalise the input when it loads it.

    Args:
        rows: [N, B, H, W, C] the input, i.e. the images that a batch norm returns.
        reader: The layer.
    """
    n, b, h, w, c = rows.shape
    if isinstance(reader, nn.Linear):
        return reader.out_features <= 16
    if not isinstance(reader, nn.Conv2d):
        return False
    k, stride, co = reader.kernel_size[0], reader.stride[0], reader.out_channels
    work = 2.0 * n * b * (h // stride) * (w // stride) * k * k * c * co
    return has_few_outputs(k, stride, False, co) or work < _LIGHT


def reads_images(layer: nn.Module, doubled: bool = False) -> bool:
    """Return whether a kernel runs this layer and reads images with channels last, as they are stored.

    Args:
        doubled: Whether an upsampling by 2 comes before the layer, which the kernel then has to compute too.
    """
    if isinstance(layer, nn.Linear):
        return not doubled  # its input is flattened, see `linear`
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or not has_conv_kernel(layer):
        return False
    return not doubled or (layer.kernel_size[0], layer.stride[0], layer.padding[0]) == (3, 1, 1)


def conv2d(x: Tensor, weight: Tensor, bias: Bias, like: nn.Conv2d, fusions: Fusions = Fusions()) -> Tensor:
    """Run convolutions; see `ops.conv2d`.

    With an epilogue, the output must have only one reader, a batch norm or a layer that runs by a kernel, because that
    reader computes the backward pass of the epilogue.
    """
    if x.dtype == torch.float64 or x.dim() != 5:
        return ops.conv2d(x, weight, bias, like, fusions)
    if like.groups > 1 or not has_conv_kernel(like):
        x = _double(x) if fusions.upsample else x
        return fusions.finish(_without_conv_kernel(x, weight, bias, like), apply_to_images)
    k, stride, pad = like.kernel_size[0], int(like.stride[0]), int(like.padding[0])
    doubled, is_point = fusions.upsample, (k, stride, pad) == (1, 1, 0)
    if doubled and is_point:  # four equal pixels give four equal results: compute one of them
        return fusions.finish(_double(conv2d(x, weight, bias, like)), apply_to_images)
    if doubled and (k, stride, pad) != (3, 1, 1):
        x, doubled = _double(x), False
    h, w = x.shape[3:]
    if fusions.pool is not None:
        if is_point and _has_even_sides(x) and _source(x) is None:  # the mean of the results is the result of the mean
            return conv2d(_halve(x), weight, bias, like, replace(fusions, pool=None))
        if doubled or (k, stride, pad, h % 2, w % 2) != (3, 1, 1, 0, 0):
            return apply_to_images(fusions.pool, conv2d(x, weight, bias, like, Fusions(upsample=doubled)))
        spec = _conv_spec((h // 2, w // 2), WeightLayout(3, pool=True), 2, 1, False)
    elif doubled:
        spec = _conv_spec((2 * h, 2 * w), WeightLayout(3, fold=True), 2, 1, True)
    else:
        size = ((h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1)
        spec = _conv_spec(size, WeightLayout(k), stride, pad, False)
    return _run(x, weight, bias, spec, fusions)


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Bias, like: nn.ConvTranspose2d, fusions: Fusions = Fusions()
) -> Tensor:
    """Run transposed convolutions; see `ops.conv_transpose2d`."""
    if x.dtype == torch.float64 or x.dim() != 5:
        return ops.conv_transpose2d(x, weight, bias, like, fusions)
    if _runs_groups(x, like):
        out = groups_as_members(conv_transpose2d, x, weight, bias, like, _dtype(x))
        return fusions.finish(out)
    if not has_conv_kernel(like):
        return ops.conv_transpose2d(x, weight, bias, like, fusions)
    k, pad, more = like.kernel_size[0], int(like.padding[0]), int(like.output_padding[0])
    stride = int(like.stride[0])
    h, w = ((edge - 1) * stride - 2 * pad + k + more for edge in x.shape[3:])
    if stride == 1:  # a plain convolution with its taps in reverse order
        spec = _conv_spec((h, w), WeightLayout(k, flip=True, in_first=True), 1, k - 1 - pad, False)
    else:
        spec = _conv_spec((h, w), WeightLayout(k, in_first=True), 2, pad, True)
    return _run(x, weight, bias, spec, fusions)


def _without_conv_kernel(x: Tensor, weight: Tensor, bias: Bias, like: nn.Conv2d) -> Tensor:
    """Run a convolution that no kernel supports directly, e.g. one with groups, in the way that is fastest for it."""
    if _runs_groups(x, like):
        return groups_as_members(conv2d, x, weight, bias, like, _dtype(x))
    unpadded = set(like.padding) == {0} and set(like.dilation) == {1}
    if unpadded and like.groups == like.in_channels == like.out_channels and like.kernel_size == x.shape[3:]:
        return weighted_sums(x, weight, bias, _dtype(x))
    if unpadded and like.kernel_size == like.stride == (1, 1) and like.groups > 1:
        return products_of_groups(x, weight, bias, like.groups)
    return ops.conv2d(x, weight, bias, like)


def _runs_groups(x: Tensor, like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether each group of a convolution of x [N, …] runs as a member of its own (`groups_as_members`).

    There must be a kernel, and N · groups must fit into its launch grid.
    """
    return has_group_kernel(like) and len(x) * like.groups <= _MAX_GRID // 8


def has_group_kernel(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether a kernel can run each group of a convolution with groups.

    Each group must have at least `_GROUP_WIDTH` channels, because a product on tensor cores is that wide.
    """
    narrow = min(like.in_channels, like.out_channels) // like.groups
    return like.groups > 1 and narrow >= _GROUP_WIDTH and has_conv_kernel(one_group(like))


def divide(weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """Divide the weights [N, O, …] of spectral layers by their largest singular values, estimated with u [N, O].

    Args:
        move: Whether to improve u by one power iteration, as in training mode.

    Returns:
        The divided weights, and u after the power iteration.
    """
    if weight.dtype != torch.float32:
        return ops.divide(weight, u, move)
    return MemberDivide.apply(weight, u, move)


def has_conv_kernel(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether a kernel can run this convolution.

    It must be square and at most 5×5, have stride 1 or 2, be padded with zeros, and have neither groups nor dilation.
    """
    k, stride, pad = like.kernel_size, like.stride, like.padding
    square = all(len({*pair}) == 1 for pair in (k, stride, like.output_padding))
    square = square and not isinstance(pad, str) and len({*pad}) == 1
    plain = like.groups == 1 and set(like.dilation) == {1} and like.padding_mode == "zeros"
    return bool(square and plain and k[0] <= 5 and stride[0] in (1, 2) and int(pad[0]) < k[0])


def supports_epilogue(layer: nn.Module) -> bool:
    """Return whether the kernel of this layer can apply an activation and dropout to its output."""
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or not has_conv_kernel(layer):
        return False
    transposed = isinstance(layer, nn.ConvTranspose2d) and layer.stride[0] == 2
    return not has_few_outputs(layer.kernel_size[0], layer.stride[0], transposed, layer.out_channels)


def _conv_spec(size: tuple[int, int], layout: WeightLayout, stride: int, pad: int, transposed: bool) -> ConvSpec:
    """Return the settings of a convolution with an output of this size, for the kernels."""
    return ConvSpec(size, layout, stride, pad, transposed, bool(torch.backends.cuda.matmul.allow_tf32))


def _source(x: Tensor) -> Source:
    """Return the operation that computed x [N, B, C, H, W], if it left work to the reader of x.

    Returns:
        (epilogue, channels) of a convolution with an epilogue, or the `NormOnLoad` of a batch norm; None for other
        operations.
    """
    epilogue: Epilogue | None = getattr(x, _EPILOGUE, None)
    return (epilogue, x.shape[2]) if epilogue is not None else getattr(x, _NORM, None)


def _annotate(out: Tensor, stats: Tensor | None, epilogue: Epilogue | None) -> Tensor:
    """Attach partial statistics and the epilogue to an output tensor as attributes, for the operation that reads it."""
    setattr(out, _STATS, stats)
    setattr(out, _EPILOGUE, epilogue)
    return out


def _run(x: Tensor, weight: Tensor, bias: Bias, spec: ConvSpec, fusions: Fusions, source: Source = None) -> Tensor:
    """Run a convolution by a kernel and return its output [N, B, CO, OH, OW], stored with channels last.

    Args:
        x: [N, B, C, H, W], in any memory format.
        weight: In the layout of its module.
        source: The operation that computed x; None: look it up in the attributes of x.
    """
    source = source or _source(x)
    rows, dtype = x.permute(0, 1, 3, 4, 2), _dtype(x)
    if rows.dtype != dtype or not rows.is_contiguous():  # permute and cast in one pass
        rows = torch.empty(rows.shape, dtype=dtype, device=x.device).copy_(rows)
    y, stats = MemberConv.apply(rows, weight, bias, spec, fusions.feeds_norm, fusions.epilogue, source)
    # A view: PyTorch sees the usual shape, and the next kernel finds channels last in memory.
    return _annotate(y.permute(0, 1, 4, 2, 3), stats, fusions.epilogue)
