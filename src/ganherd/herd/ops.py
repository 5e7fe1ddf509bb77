"""Operations on all members at once, `[N, B, …]` with a weight for each member: the definitions, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd import streams


def refine(keys: Tensor, number: int) -> Tensor:
    """[N] keys of one operation out of the keys of its module."""
    if keys.is_cuda:
        return streams.device_keys(keys, number)
    return torch.from_numpy(streams.keys(keys.numpy(), number))


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, flatten: bool = False, shape: tuple[int, ...] = ()
) -> Tensor:
    """x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]; further axes between B and I stay.

    `flatten`: x is flattened to [N, B, I] first; `shape`: what the outputs are unflattened to.
    """
    if shape:
        return linear(x, weight, bias, flatten).unflatten(2, shape)
    x = x.flatten(2) if flatten else x
    flat = x.flatten(1, -2) if x.dim() > 3 else x
    if bias is None:
        out = torch.bmm(flat, weight.transpose(1, 2))
    else:
        out = torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2))
    return out.unflatten(1, x.shape[1:-1]) if x.dim() > 3 else out


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    """(Leaky) ReLU with that slope below 0 (1: none), then zeroes with probability p, from each member's own stream."""
    x = x if slope == 1.0 else F.leaky_relu(x, slope)
    kept = (streams.draw(keys, x.shape[1:], "uniform", torch.float32) >= p).to(x.dtype)
    return x * (kept / (1.0 - p) if p < 1.0 else kept)


def per_channel(value: Tensor, x: Tensor) -> Tensor:
    """[N, C] shaped to meet x [N, B, C, …]."""
    return value.reshape(value.shape[0], 1, value.shape[1], *(1,) * (x.dim() - 3))


def normalise(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Batch norm with given statistics [N, C]."""
    scale = torch.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return x * per_channel(scale, x) + per_channel(shift, x)


@dataclass(frozen=True)
class Running:
    """Running statistics [N, C] of a batch norm, the number of batches [N] that they saw, and how fast they move."""

    mean: Tensor
    var: Tensor
    count: Tensor
    momentum: float | None  # None: a plain average over all batches


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: Running | None
) -> tuple[Tensor, Running | None]:
    """Batch norm with each member's own batch statistics, then (leaky) ReLU with that slope below 0 (1: none).

    Answers the output and the running statistics after this batch.
    """
    over = [d for d in range(x.dim()) if d not in (0, 2)]
    var, mean = torch.var_mean(x if x.dtype == torch.float64 else x.float(), over, correction=0)
    out = normalise(x, mean, var, weight, bias, eps)
    out = out if slope == 1.0 else F.leaky_relu(out, slope)
    if running is None:
        return out, None
    with torch.no_grad():
        count = running.count + 1
        share: Any = running.momentum
        if share is None:
            share = (1.0 / count.to(running.mean.dtype))[:, None]
        samples = x.numel() // (x.shape[0] * x.shape[2])
        unbiased = var * (samples / max(samples - 1, 1))
        moved = [
            old * (1 - share) + new.to(old.dtype) * share
            for old, new in ((running.mean, mean), (running.var, unbiased))
        ]
    return out, Running(moved[0], moved[1], count, running.momentum)


def upsample(x: Tensor) -> Tensor:
    """Every pixel of [N, B, C, H, W] four times."""
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    like: nn.Conv2d,
    upsample_first: bool = False,
    still_bias: bool = False,
) -> Tensor:
    """x [N, B, C, H, W], weight [N, O, C/groups, k, k] -> [N, B, O, H', W']; padding, stride, … as the module has them.

    `still_bias` says that a batch norm follows, which takes the bias away again; only the kernels make use of it.
    """
    x = upsample(x) if upsample_first else x
    return torch.stack([
        like._conv_forward(one, w, b)
        for one, w, b in zip(x, weight, bias if bias is not None else [None] * len(x), strict=True)
    ])  # fmt: skip


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.ConvTranspose2d, still_bias: bool = False
) -> Tensor:
    return torch.stack([
        F.conv_transpose2d(one, w, b, like.stride, like.padding, like.output_padding, like.groups, like.dilation)  # type: ignore[arg-type]
        for one, w, b in zip(x, weight, bias if bias is not None else [None] * len(x), strict=True)
    ])  # fmt: skip
