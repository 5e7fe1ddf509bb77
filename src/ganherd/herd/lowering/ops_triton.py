"""The operations of `ops` by Triton kernels, for a GPU: the same functions, the same meaning, channels last inside."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.kernels.conv import ConvSpec, has_few_outputs
from ganherd.herd.lowering.kernels.linear import MemberLinear
from ganherd.herd.lowering.kernels.member_conv import MemberConv
from ganherd.herd.lowering.kernels.norm import MemberNorm, NormOnLoad
from ganherd.herd.lowering.kernels.random_bits import MemberDropout
from ganherd.herd.lowering.kernels.spectral_kernel import MemberDivide
from ganherd.herd.lowering.kernels.taps import WeightLayout
from ganherd.herd.lowering.ops import Epilogue

_LIGHT = 8e9  # operations of a layer that normalises what it reads: of a heavier one this would slow the product
JOINS = True  # convolutions do part of the work of those who read them, as `joins` may ask

# What an operation leaves beside its output for the only one that reads it:
_STATS = "statistics"  # for a batch norm
_AFTER = "after"  # how the convolution ended: the reader's backward pass goes through that, too
_LINE = "line"  # of a batch norm


def _dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _channels_last(x: Tensor) -> Tensor:
    """[N, B, C, H, W] as [N, B, H, W, C], contiguous."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, flatten: bool = False, shape: tuple[int, ...] = (),
    normed: bool = False, after: Epilogue | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of one tap: the kernel takes any size, where the library's batched product wants multiples of 8.

    Images that are flattened before it, or unflattened after it, lie channels last: the weights are read in another order
    instead of moving these. `normed`: a batch norm alone reads it; `after`: how it ends, where that is so.
    """
    images = flatten and x.dim() == 5
    if (x.dim() != 3 and not images) or (shape and len(shape) != 3):
        return ops.linear(x, weight, bias, flatten, shape, normed, after)
    if not images and not shape and x.dtype == _dtype(x) and is_aligned(x.dtype, *x.shape[1:], weight.shape[1]):
        if bias is None:
            return ops.linear(x, weight, bias, after=after)
        out = MemberLinear.apply(x, weight, bias)  # the library's product reads the weights as they lie
        return after(out) if after else out
    turn = WeightLayout(1, places_in=math.prod(x.shape[3:]), places_out=math.prod(shape[1:]))
    source = _source(x)
    x = _channels_last(x).flatten(2) if images else x
    if shape and bias is not None:
        bias = bias.unflatten(1, (shape[0], -1)).transpose(1, 2).flatten(1)
    how = _how((1, 1), turn, 1, 0, False)
    out = _run(x[..., None, None], weight[..., None, None], bias, how, normed, after, source)
    stats = getattr(out, _STATS)
    out = out.flatten(2)
    if shape:  # the columns are (place, channel): parts of the rows of a channel
        out = out.unflatten(2, (*shape[1:], shape[0])).permute(0, 1, 4, 2, 3)
        stats = None if stats is None else stats.view(3, stats.shape[1], -1, shape[0])
    return _beside(out, stats, after)


def is_aligned(dtype: torch.dtype, *sizes: int) -> bool:
    """Whether the library's batched product is the better one for a linear layer: samples, features in, features out."""
    return dtype == torch.float32 and all(size % 4 == 0 for size in sizes)


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    if p >= 1.0:
        return x * 0.0
    if x.dim() == 5:
        rows = _channels_last(x)
        return MemberDropout.apply(rows.flatten(2, 3), keys, p, slope).view(rows.shape).permute(0, 1, 4, 2, 3)
    flat = x.contiguous().flatten(1)[:, :, None, None]  # the counter runs over the elements as they lie
    return MemberDropout.apply(flat, keys, p, slope).view(x.shape)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: ops.RunningStats | None,
    reader: nn.Module | None = None, doubled: bool = False,
) -> tuple[Tensor, ops.RunningStats | None]:  # fmt: skip
    """`reader`: the layer that alone reads it, if a kernel does (`reads`); `doubled`: an upsampling goes before that."""
    if x.dtype == torch.float64 or (
        running and running.momentum is None
    ):  # a plain average over all batches: no kernel
        return ops.batch_norm(x, weight, bias, eps, slope, running)
    if running and not all(value.is_contiguous() for value in (running.mean, running.var, running.count)):
        mean, var, count = (value.contiguous() for value in (running.mean, running.var, running.count))
        running = ops.RunningStats(mean, var, count, running.momentum)
    after: Epilogue | None = getattr(x, _AFTER, None)
    n, c = x.shape[0], x.shape[2]
    weight = torch.ones(n, c, device=x.device) if weight is None else weight
    bias = torch.zeros(n, c, device=x.device) if bias is None else bias
    rows = x.movedim(2, -1).contiguous()  # channels last
    old = (running.mean, running.var, running.count) if running else None  # moved in place: the state's own buffers
    momentum = running.momentum if running and running.momentum is not None else 0.0
    stats, places = getattr(x, _STATS, None), math.prod(x.shape[3:])
    link: list[NormOnLoad] | None = [] if reader is not None and x.dim() == 5 else None
    waits = link is not None and not doubled and rows.dtype == _dtype(rows) and _is_light(rows, reader)
    y = MemberNorm.apply(
        rows.flatten(1, -2), weight, bias, eps, slope, old, momentum, stats, after, places, link, waits
    )
    out = y.view(rows.shape).movedim(-1, 2)
    if link:
        setattr(out, _LINE, link[0])
    return out, running


def _is_light(rows: Tensor, reader: nn.Module | None) -> bool:
    """Whether a layer reads [N, B, H, W, C] so few times, or so little of it, that it may as well normalise it on the way."""
    n, b, h, w, c = rows.shape
    if isinstance(reader, nn.Linear):
        return reader.out_features <= 16
    if not isinstance(reader, nn.Conv2d):
        return False
    k, stride, co = reader.kernel_size[0], reader.stride[0], reader.out_channels
    work = 2.0 * n * b * (h // stride) * (w // stride) * k * k * c * co
    return has_few_outputs(k, stride, False, co) or work < _LIGHT


def reads(layer: nn.Module, doubled: bool = False) -> bool:
    """Whether a kernel reads the images that this layer is given, as they lie; `doubled`: an upsampling goes before."""
    if isinstance(layer, nn.Linear):
        return not doubled  # its input is flattened: see `linear`
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or not fits(layer):
        return False
    return not doubled or (layer.kernel_size[0], layer.stride[0], layer.padding[0]) == (3, 1, 1)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    like: nn.Conv2d,
    upsample_first: bool = False,
    normed: bool = False,
    after: Epilogue | None = None,
    pool_after: nn.AvgPool2d | None = None,
) -> Tensor:
    """`normed`: a batch norm alone reads it; `after`: how it ends, where a batch norm or another kernel alone reads it."""
    if not fits(like):
        return ops.conv2d(x, weight, bias, like, upsample_first, normed, after, pool_after)
    k, stride, pad = like.kernel_size[0], int(like.stride[0]), int(like.padding[0])
    if upsample_first and not (k == 3 and stride == 1 and pad == 1):
        x, upsample_first = ops.upsample(x), False
    h, w = x.shape[3:]
    if pool_after is not None:
        if not upsample_first and (k, stride, pad, h % 2, w % 2) == (3, 1, 1, 0, 0):
            return _run(x, weight, bias, _how((h // 2, w // 2), WeightLayout(3, pool=True), 2, 1, False), normed, after)
        return ops.apply_to_images(pool_after, conv2d(x, weight, bias, like, upsample_first))
    if upsample_first:
        return _run(x, weight, bias, _how((2 * h, 2 * w), WeightLayout(3, fold=True), 2, 1, True), normed, after)
    size = ((h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1)
    return _run(x, weight, bias, _how(size, WeightLayout(k), stride, pad, False), normed, after)


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.ConvTranspose2d, normed: bool = False,
    after: Epilogue | None = None,
) -> Tensor:  # fmt: skip
    if not fits(like):
        return ops.conv_transpose2d(x, weight, bias, like, normed, after)
    k, pad, more = like.kernel_size[0], int(like.padding[0]), int(like.output_padding[0])
    stride = int(like.stride[0])
    h, w = ((edge - 1) * stride - 2 * pad + k + more for edge in x.shape[3:])
    if stride == 1:  # a convolution with the taps turned round
        turn = WeightLayout(k, flip=True, in_first=True)
        return _run(x, weight, bias, _how((h, w), turn, 1, k - 1 - pad, False), normed, after)
    return _run(x, weight, bias, _how((h, w), WeightLayout(k, in_first=True), 2, pad, True), normed, after)


def divide(weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """A spectral layer's weight [N, O, …] over its largest singular value as u [N, O] sees it, and u."""
    if weight.dtype != torch.float32:
        return ops.divide(weight, u, move)
    return MemberDivide.apply(weight, u, move)  # type: ignore[no-any-return]


def fits(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether the kernels know this layer: square, stride 1 or 2, up to 5 taps, no groups or dilation, padded with zeros."""
    k, stride, pad = like.kernel_size, like.stride, like.padding
    square = all(len({*pair}) == 1 for pair in (k, stride, like.output_padding))
    square = square and not isinstance(pad, str) and len({*pad}) == 1
    plain = like.groups == 1 and set(like.dilation) == {1} and like.padding_mode == "zeros"
    return bool(square and plain and k[0] <= 5 and stride[0] in (1, 2) and int(pad[0]) < k[0])


def ends(layer: nn.Module) -> bool:
    """Whether the kernel of this layer can end with an activation and dropout."""
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or not fits(layer):
        return False
    transposed = isinstance(layer, nn.ConvTranspose2d) and layer.stride[0] == 2
    return not has_few_outputs(layer.kernel_size[0], layer.stride[0], transposed, layer.out_channels)


def _how(size: tuple[int, int], turn: WeightLayout, stride: int, pad: int, transposed: bool) -> ConvSpec:
    return ConvSpec(size, turn, stride, pad, transposed, bool(torch.backends.cuda.matmul.allow_tf32))


def _source(x: Tensor) -> NormOnLoad | tuple[Epilogue, int] | None:
    """What made x [N, B, C, H, W], where the reader has to do with it."""
    after: Epilogue | None = getattr(x, _AFTER, None)
    return (after, x.shape[2]) if after is not None else getattr(x, _LINE, None)


def _beside(out: Tensor, stats: Tensor | None, after: Epilogue | None) -> Tensor:
    setattr(out, _STATS, stats)
    setattr(out, _AFTER, after)
    return out


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, how: ConvSpec, normed: bool = False, after: Epilogue | None = None,
    source: NormOnLoad | tuple[Epilogue, int] | None = None,
) -> Tensor:  # fmt: skip
    """x [N, B, C, H, W] as it comes, the weight as its module has it."""
    source = source or _source(x)
    rows, dtype = x.permute(0, 1, 3, 4, 2), _dtype(x)
    if rows.dtype != dtype or not rows.is_contiguous():  # turned and cast in one pass
        rows = torch.empty(rows.shape, dtype=dtype, device=x.device).copy_(rows)
    y, stats = MemberConv.apply(rows, weight, bias, how, normed, after, source)
    # a view: what follows sees the usual shape, the next kernel finds channels last
    return _beside(y.permute(0, 1, 4, 2, 3), stats, after)
