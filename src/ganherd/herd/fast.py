"""The operations of `ops` by Triton kernels, for a GPU: the same functions, the same meaning, channels last inside."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ganherd.herd import ops
from ganherd.herd.kernels.conv import MemberConv
from ganherd.herd.kernels.linear import MemberLinear
from ganherd.herd.kernels.norm import MemberNorm
from ganherd.herd.kernels.random import MemberDropout
from ganherd.herd.kernels.taps import Turn

_STATS = "statistics"  # of an output, kept beside it for the batch norm that alone reads it


def _dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _channels_last(x: Tensor) -> Tensor:
    """[N, B, C, H, W] as [N, B, H, W, C], contiguous."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, flatten: bool = False, shape: tuple[int, ...] = ()
) -> Tensor:
    """A convolution of one tap: the kernel takes any size, where the library's batched product wants multiples of 8.

    Images that are flattened before it, or unflattened after it, lie channels last: the weights are read in another order
    instead of moving these.
    """
    images = flatten and x.dim() == 5
    if (x.dim() != 3 and not images) or (shape and len(shape) != 3):
        return ops.linear(x, weight, bias, flatten, shape)
    if not images and not shape and x.dtype == _dtype(x) == torch.float32 and _aligned(x, weight):
        if bias is None:
            return ops.linear(x, weight, bias)
        return MemberLinear.apply(x, weight, bias)  # the library's product reads the weights as they lie
    turn = Turn(1, places_in=math.prod(x.shape[3:]), places_out=math.prod(shape[1:]))
    x = _channels_last(x).flatten(2) if images else x
    if shape and bias is not None:
        bias = bias.unflatten(1, (shape[0], -1)).transpose(1, 2).flatten(1)
    out = _run(x[..., None, None], weight[..., None, None], bias, (1, 1), turn, 1, 0, False)[..., 0, 0]
    return out.unflatten(2, (*shape[1:], shape[0])).permute(0, 1, 4, 2, 3) if shape else out


def _aligned(x: Tensor, weight: Tensor) -> bool:
    return all(size % 4 == 0 for size in (*x.shape[1:], weight.shape[1]))


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    if p >= 1.0:
        return x * 0.0
    if x.dim() == 5:
        rows = _channels_last(x)
        return MemberDropout.apply(rows.flatten(2, 3), keys, p, slope).view(rows.shape).permute(0, 1, 4, 2, 3)
    flat = x.contiguous().flatten(1)[:, :, None, None]  # the counter runs over the elements as they lie
    return MemberDropout.apply(flat, keys, p, slope).view(x.shape)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: ops.Running | None
) -> tuple[Tensor, ops.Running | None]:
    moving = running is None or (
        running.momentum is not None
        and all(value.is_contiguous() for value in (running.mean, running.var, running.count))
    )
    if not moving or x.dtype == torch.float64:  # a plain average over all batches: rare, and no kernel for it
        return ops.batch_norm(x, weight, bias, eps, slope, running)
    n, c = x.shape[0], x.shape[2]
    weight = torch.ones(n, c, device=x.device) if weight is None else weight
    bias = torch.zeros(n, c, device=x.device) if bias is None else bias
    rows = x.movedim(2, -1).contiguous()  # channels last
    old = (running.mean, running.var, running.count) if running else None  # moved in place: the state's own buffers
    momentum = running.momentum if running and running.momentum is not None else 0.0
    stats = getattr(x, _STATS, None)
    y = MemberNorm.apply(rows.flatten(1, -2), weight, bias, eps, slope, old, momentum, stats)
    return y.view(rows.shape).movedim(-1, 2), running


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    like: nn.Conv2d,
    upsample_first: bool = False,
    still_bias: bool = False,
) -> Tensor:
    if not fits(like):
        return ops.conv2d(x, weight, bias, like, upsample_first)
    k, stride, pad = like.kernel_size[0], int(like.stride[0]), int(like.padding[0])
    if upsample_first and not (k == 3 and stride == 1 and pad == 1):
        x, upsample_first = ops.upsample(x), False
    h, w = x.shape[3:]
    if upsample_first:
        return _run(x, weight, bias, (2 * h, 2 * w), Turn(3, fold=True), 2, 1, True, still_bias)
    size = ((h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1)
    return _run(x, weight, bias, size, Turn(k), stride, pad, False, still_bias)


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.ConvTranspose2d, still_bias: bool = False
) -> Tensor:
    if not fits(like):
        return ops.conv_transpose2d(x, weight, bias, like)
    k, pad, more = like.kernel_size[0], int(like.padding[0]), int(like.output_padding[0])
    stride = int(like.stride[0])
    h, w = ((edge - 1) * stride - 2 * pad + k + more for edge in x.shape[3:])
    if stride == 1:  # a convolution with the taps turned round
        turn = Turn(k, flip=True, in_first=True)
        return _run(x, weight, bias, (h, w), turn, 1, k - 1 - pad, False, still_bias)
    return _run(x, weight, bias, (h, w), Turn(k, in_first=True), 2, pad, True, still_bias)


def fits(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether the kernels know this layer: square, stride 1 or 2, up to 5 taps, no groups or dilation, padded with zeros."""
    k, stride, pad = like.kernel_size, like.stride, like.padding
    square = all(len({*pair}) == 1 for pair in (k, stride, like.output_padding))
    square = square and not isinstance(pad, str) and len({*pad}) == 1
    plain = like.groups == 1 and set(like.dilation) == {1} and like.padding_mode == "zeros"
    return bool(square and plain and k[0] <= 5 and stride[0] in (1, 2) and int(pad[0]) < k[0])


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, size: tuple[int, int], turn: Turn, stride: int, pad: int,
    transposed: bool, normed: bool = False,
) -> Tensor:  # fmt: skip
    """x [N, B, C, H, W] as it comes, the weight as its module has it."""
    rows, dtype = x.permute(0, 1, 3, 4, 2), _dtype(x)
    if rows.dtype != dtype or not rows.is_contiguous():  # turned and cast in one pass
        rows = torch.empty(rows.shape, dtype=dtype, device=x.device).copy_(rows)
    tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
    y, stats = MemberConv.apply(rows, weight, bias, size, turn, stride, pad, transposed, tf32, normed)
    out: Tensor = y.permute(
        0, 1, 4, 2, 3
    )  # a view: what follows sees the usual shape, the next kernel finds channels last
    setattr(out, _STATS, stats)
    return out
