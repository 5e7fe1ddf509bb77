"""The operations of `ops` by Triton kernels, for a GPU: the same functions, the same meaning, channels last inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ganherd.herd import ops
from ganherd.herd.kernels.conv import MemberConv
from ganherd.herd.kernels.norm import MemberNorm
from ganherd.herd.kernels.random import MemberDropout


def _dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _channels_last(x: Tensor) -> Tensor:
    """[N, B, C, H, W] as [N, B, H, W, C], contiguous."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _channels_first(x: Tensor) -> Tensor:
    """The reverse, as a view: what follows sees the usual shape, and the next kernel finds channels last."""
    return x.permute(0, 1, 4, 2, 3)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of one tap: the kernel takes any size, where the library's batched product wants multiples of 8."""
    if x.dim() != 3:
        return ops.linear(x, weight, bias)
    taps = weight.transpose(1, 2).to(_dtype(x)).contiguous()[:, None]  # [N, 1, I, O]
    rows = x.contiguous().to(taps.dtype)[:, :, None, None]
    tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
    return MemberConv.apply(rows, taps, bias, (1, 1), 1, 1, 0, False, tf32)[:, :, 0, 0]


def dropout(x: Tensor, p: float, keys: Tensor) -> Tensor:
    if p >= 1.0:
        return x * 0.0
    if x.dim() == 5:
        rows = _channels_last(x)
        return _channels_first(MemberDropout.apply(rows.flatten(2, 3), keys, p).view(rows.shape))
    flat = x.contiguous().flatten(1)[:, :, None, None]  # the counter runs over the elements as they lie
    return MemberDropout.apply(flat, keys, p).view(x.shape)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: ops.Running | None
) -> tuple[Tensor, ops.Running | None]:
    if running is not None and running.momentum is None:  # a plain average over all batches: rare, and no kernel for it
        return ops.batch_norm(x, weight, bias, eps, slope, running)
    n, c = x.shape[0], x.shape[2]
    weight = torch.ones(n, c, device=x.device) if weight is None else weight
    bias = torch.zeros(n, c, device=x.device) if bias is None else bias
    rows = x.movedim(2, -1).contiguous()  # channels last
    old = (running.mean, running.var) if running else None
    momentum = running.momentum if running and running.momentum is not None else 0.0
    y, mean, var = MemberNorm.apply(rows.flatten(1, -2), weight, bias, eps, slope, old, momentum)
    out = y.view(rows.shape).movedim(-1, 2)
    return out, ops.Running(mean, var, running.count + 1, running.momentum) if running else None


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.Conv2d, upsample_first: bool = False) -> Tensor:
    if not fits(like):
        return ops.conv2d(x, weight, bias, like, upsample_first)
    dtype, k = _dtype(x), like.kernel_size[0]
    stride, pad = int(like.stride[0]), int(like.padding[0])
    if upsample_first and not (k == 3 and stride == 1 and pad == 1):
        x, upsample_first = ops.upsample(x), False
    h, w = x.shape[3:]
    if upsample_first:
        fold = _fold(weight)
        four = torch.einsum("ka,lb,noiab->nklio", fold, fold, weight)  # [N, 4, 4, CI, CO]
        taps = four.flatten(1, 2).to(dtype).contiguous()
        return _run(x, taps, bias, (2 * h, 2 * w), 4, 2, 1, True, dtype)
    taps = weight.permute(0, 3, 4, 2, 1).flatten(1, 2).to(dtype).contiguous()  # [N, k*k, CI, CO]
    size = ((h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1)
    return _run(x, taps, bias, size, k, stride, pad, False, dtype)


def conv_transpose2d(x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.ConvTranspose2d) -> Tensor:
    if not fits(like):
        return ops.conv_transpose2d(x, weight, bias, like)
    k, pad, more = like.kernel_size[0], int(like.padding[0]), int(like.output_padding[0])
    stride = int(like.stride[0])
    size = tuple((edge - 1) * stride - 2 * pad + k + more for edge in x.shape[3:])
    taps = weight.permute(0, 3, 4, 1, 2).flatten(1, 2)
    dtype = _dtype(x)
    if stride == 1:  # a convolution with the taps turned round
        return _run(x, taps.flip(1).to(dtype).contiguous(), bias, size, k, 1, k - 1 - pad, False, dtype)
    return _run(x, taps.to(dtype).contiguous(), bias, size, k, 2, pad, True, dtype)


def fits(like: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether the kernels know this layer: square, stride 1 or 2, up to 5 taps, no groups or dilation, padded with zeros."""
    k, stride, pad = like.kernel_size, like.stride, like.padding
    square = len({*k}) == 1 and len({*stride}) == 1 and not isinstance(pad, str) and len({*pad}) == 1
    plain = like.groups == 1 and set(like.dilation) == {1} and like.padding_mode == "zeros"
    return bool(square and plain and k[0] <= 5 and stride[0] in (1, 2) and int(pad[0]) < k[0])


def _fold(weight: Tensor) -> Tensor:
    """[4, 3]: nearest upsampling by 2 and then three taps are four taps of a transposed convolution of stride 2, sums of these.

    Made without a copy from the host, which a CUDA graph could not hold.
    """
    k, a = torch.arange(4, device=weight.device)[:, None], torch.arange(3, device=weight.device)[None, :]
    # rows: (0,0,1), (0,1,1), (1,1,0), (1,0,0)
    taken = ((k == 0) & (a == 2)) | ((k == 1) & (a >= 1)) | ((k == 2) & (a <= 1)) | ((k == 3) & (a == 0))
    return taken.to(weight.dtype)


def _run(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    size: tuple[int, ...],
    k: int,
    stride: int,
    pad: int,
    transposed: bool,
    dtype: torch.dtype,
) -> Tensor:
    rows = _channels_last(x).to(dtype)
    tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
    return _channels_first(MemberConv.apply(rows, taps, bias, tuple(size), k, stride, pad, transposed, tf32))
