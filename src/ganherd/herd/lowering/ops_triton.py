"""Run the operations of `ops` by Triton kernels on a GPU: the same functions with the same results, channels last inside."""

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

# Floating-point operations; layers with more do not normalise their input on load, which would slow them down.
_LIGHT = 8e9
_MAX_GRID = 65_535  # programs along the member axis of a grid
_GROUP_WIDTH = 16  # channels in and out of a group
FUSES_EPILOGUES = True  # see `FusionPlan`

# Attributes that an operation sets on its output for the only operation that reads it.
_STATS = "statistics"  # partial statistics, for a batch norm
_EPILOGUE = "epilogue"  # the epilogue of a convolution: the reader's backward pass undoes it
_NORM = "norm_on_load"  # a batch norm, for the convolution that reads it: see `NormOnLoad`


def _dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which an operation on x computes."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _channels_last(x: Tensor) -> Tensor:
    """Return [N, B, C, H, W] as [N, B, H, W, C], contiguous."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def linear(x: Tensor, weight: Tensor, bias: Bias, fusions: Fusions = Fusions()) -> Tensor:
    """Run linear layers as `ops.linear` does, as convolutions of one tap or by PyTorch's batched product.

    The convolution kernel is as fast with any size, whereas the batched product needs multiples of 8. Images that are flattened
    before the layer, or unflattened after it, are stored channels last: the weights are read in another order, so that the
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
    """Return whether PyTorch's batched product is faster for a linear layer; sizes: samples, features in, features out."""
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
    """Apply a batch norm and a (leaky) ReLU; see `ops.batch_norm`.

    If `reader` is light, the output is x itself, and the reader normalises it on load. Running statistics change in place.

    Args:
        reader: The layer whose kernel alone reads the output, if there is one; see `reads_images`.
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
    """Apply a batch norm, a gain and a shift of each image, and a (leaky) ReLU; None if no kernel does.

    Running statistics change in place.

    Args:
        x: [N, B, C, H, W].
        gain: [N, B, C, 1, 1], as `shift`.
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
    """Apply an instance norm as a batch norm in which every sample of every member is a member; see `ops.instance_norm`."""
    n, b = x.shape[:2]
    if n * b > _MAX_GRID:
        return ops.instance_norm(x, weight, bias, eps)
    weight = None if weight is None else weight[:, None].expand(n, b, -1).flatten(0, 1)
    bias = None if bias is None else bias[:, None].expand(n, b, -1).flatten(0, 1)
    out, _ = batch_norm(x.flatten(0, 1)[:, None], weight, bias, eps, 1.0, None)
    return out.view(x.shape)


def rows_of(weight: Tensor, y: Tensor) -> Tensor:
    """Return rows of a table; see `ops.rows_of`."""
    return ops.rows_of(weight, y) if weight.dtype == torch.float64 else MemberRowsByKernel.apply(weight, y)


def apply_to_images(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer without parameters to images [N, B, C, H, W]."""
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
    """Add images [N, B, C, 2 H, 2 W] and x [N, B, C, H, W], doubled; None if no kernel does."""
    if x.dim() != 5:
        return None
    n, b, c, h, w = x.shape
    if other.shape != (n, b, c, 2 * h, 2 * w) or x.dtype != other.dtype or x.dtype == torch.float64:
        return None
    out = AddDoubled.apply(_channels_last(other).flatten(0, 1), _channels_last(x).flatten(0, 1))
    return out.unflatten(0, (n, b)).permute(0, 1, 4, 2, 3)


def _is_light(rows: Tensor, reader: nn.Module | None) -> bool:
    """Return whether a layer does so little work on [N, B, H, W, C] that it should normalise its input on load."""
    n, b, h, w, c = rows.shape
    if isinstance(reader, nn.Linear):
        return reader.out_features <= 16
    if not isinstance(reader, nn.Conv2d):
        return False
    k, stride, co = reader.kernel_size[0], reader.stride[0], reader.out_channels
    work = 2.0 * n * b * (h // stride) * (w // stride) * k * k * c * co
    return has_few_outputs(k, stride, False, co) or work < _LIGHT


def reads_images(layer: nn.Module, doubled: bool = False) -> bool:
    """Return whether the kernel of a layer reads images as they are stored; `doubled` if an upsampling comes before it."""
    if isinstance(layer, nn.Linear):
        return not doubled  # its input is flattened, see `linear`
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or not has_conv_kernel(layer):
        return False
    return not doubled or (layer.kernel_size[0], layer.stride[0], layer.padding[0]) == (3, 1, 1)


def conv2d(x: Tensor, weight: Tensor, bias: Bias, like: nn.Conv2d, fusions: Fusions = Fusions()) -> Tensor:
    """Run convolutions; see `ops.conv2d`. With an epilogue, only a batch norm or another kernel may read the output."""
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
    """Run a convolution that has groups, or a size for which there is no kernel, in the way that is fastest for it."""
    if _runs_groups(x, like):
        return groups_as_members(conv2d, x, weight, bias, like, _dtype(x))
    unpadded = set(like.padding) == {0} and set(like.dilation) == {1}
    if unpadded and like.groups == like.in_channels == like.out_channels and like.kernel_size == x.shape[3:]:
        return weighted_sums(x, weight, bias, _dtype(x))
    if unpadded and like.kernel_size == like.stride == (1, 1) and like.groups > 1:
        return products_of_groups(x, weight, bias, like.groups)
    return ops.conv2d(x, weight, bias, like)


def _runs_groups(x: Tensor, like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether the groups of a convolution of x [N, …] run as members: there is a kernel, and the grid is large enough."""
    return has_group_kernel(like) and len(x) * like.groups <= _MAX_GRID // 8


def has_group_kernel(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether kernels run the groups of a convolution: each must be as wide as a product on tensor cores."""
    narrow = min(like.in_channels, like.out_channels) // like.groups
    return like.groups > 1 and narrow >= _GROUP_WIDTH and has_conv_kernel(one_group(like))


def divide(weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """Divide the weights [N, O, …] of spectral layers by their largest singular values, estimated with u [N, O].

    Args:
        move: Improve u by one power iteration.

    Returns:
        The divided weights, and u.
    """
    if weight.dtype != torch.float32:
        return ops.divide(weight, u, move)
    return MemberDivide.apply(weight, u, move)


def has_conv_kernel(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Return whether a kernel runs this layer: square, stride 1 or 2, up to 5×5, no groups or dilation, zero padding."""
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
    """Describe a convolution with an output of this size."""
    return ConvSpec(size, layout, stride, pad, transposed, bool(torch.backends.cuda.matmul.allow_tf32))


def _source(x: Tensor) -> Source:
    """Return what the reader of x [N, B, C, H, W] has to know about the operation that computed x.

    Returns:
        (epilogue, channels) of a convolution with an epilogue, or a batch norm; None for other operations.
    """
    epilogue: Epilogue | None = getattr(x, _EPILOGUE, None)
    return (epilogue, x.shape[2]) if epilogue is not None else getattr(x, _NORM, None)


def _annotate(out: Tensor, stats: Tensor | None, epilogue: Epilogue | None) -> Tensor:
    """Attach statistics and epilogue to an output, for the operation that reads it."""
    setattr(out, _STATS, stats)
    setattr(out, _EPILOGUE, epilogue)
    return out


def _run(x: Tensor, weight: Tensor, bias: Bias, spec: ConvSpec, fusions: Fusions, source: Source = None) -> Tensor:
    """Run a convolution on x [N, B, C, H, W] in any memory format, with the weight in the layout of its module."""
    source = source or _source(x)
    rows, dtype = x.permute(0, 1, 3, 4, 2), _dtype(x)
    if rows.dtype != dtype or not rows.is_contiguous():  # permute and cast in one pass
        rows = torch.empty(rows.shape, dtype=dtype, device=x.device).copy_(rows)
    y, stats = MemberConv.apply(rows, weight, bias, spec, fusions.feeds_norm, fusions.epilogue, source)
    # A view: PyTorch sees the usual shape, and the next kernel finds channels last in memory.
    return _annotate(y.permute(0, 1, 4, 2, 3), stats, fusions.epilogue)
