"""Operations on all members at once, `[N, B, …]` with a weight for each member: the definitions, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd import rng
from ganherd.nets.common.spectral import divide as divide  # of a spectral layer: the same for stacked weights


def refine_keys(keys: Tensor, number: int) -> Tensor:
    """[N] keys of one operation out of the keys of its module."""
    if keys.is_cuda:
        return rng.device_keys(keys, number)
    return torch.from_numpy(rng.keys(keys.numpy(), number))


@dataclass(frozen=True)
class Epilogue:
    """How an operation ends: (leaky) ReLU with that slope below 0 (1: none), then dropout with probability p, if keys [N] of
    the module are given; `call` numbers its draws."""

    slope: float = 1.0
    p: float = 0.0
    keys: Tensor | None = None
    call: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        if self.keys is not None:
            return dropout(x, self.p, refine_keys(self.keys, self.call), self.slope)
        return x if self.slope == 1.0 else F.leaky_relu(x, self.slope)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, flatten: bool = False, shape: tuple[int, ...] = (),
    normed: bool = False, after: Epilogue | None = None,
) -> Tensor:  # fmt: skip
    """x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]; further axes between B and I stay.

    `flatten`: x is flattened to [N, B, I] first; `shape`: what the outputs are unflattened to; `after`: how it ends.
    `normed` says that a batch norm follows, which takes the bias away again; only the kernels make use of it.
    """
    if after is not None:
        return after(linear(x, weight, bias, flatten, shape))
    if shape:
        return linear(x, weight, bias, flatten).unflatten(2, shape)
    x = x.flatten(2) if flatten else x
    flat = x.flatten(1, -2) if x.dim() > 3 else x
    if torch.is_autocast_enabled(x.device.type):  # here, since autocast does not reach into a backward pass of our own
        low = torch.get_autocast_dtype(x.device.type)
        flat, weight, bias = flat.to(low), weight.to(low), None if bias is None else bias.to(low)
    out = BatchedLinear.apply(flat, weight, bias)
    return out.unflatten(1, x.shape[1:-1]) if x.dim() > 3 else out


class BatchedLinear(torch.autograd.Function):
    """x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]. PyTorch's own gradient of a transposed weight comes transposed,
    and turning it costs a quarter of the layer on a CPU; here it is made as it is wanted. Differentiable twice."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """As ever, but for the look at its own signature, which takes as long as a small product."""
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        turned = weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias[:, None], x, turned)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(dy, weight) if of_x else None,
            torch.bmm(dy.transpose(1, 2), x) if of_weight else None,
            dy.sum(1) if of_bias else None,
        )


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    """(Leaky) ReLU with that slope below 0 (1: none), then zeroes with probability p, from each member's own stream."""
    x = x if slope == 1.0 else F.leaky_relu(x, slope)
    kept = (rng.draw(keys, x.shape[1:], "uniform", torch.float32) >= p).to(x.dtype)
    return x * (kept / (1.0 - p) if p < 1.0 else kept)


def without_gradient(weight: Tensor, row: int) -> Tensor:
    """weight [..., R, C] of which one row does not learn."""
    rows = torch.arange(weight.shape[-2], device=weight.device)[:, None]
    return torch.where(rows == row % weight.shape[-2], weight.detach(), weight)


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
class RunningStats:
    """Running statistics [N, C] of a batch norm, the number of batches [N] that they saw, and how fast they move."""

    mean: Tensor
    var: Tensor
    count: Tensor
    momentum: float | None  # None: a plain average over all batches


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: RunningStats | None,
    reader: nn.Module | None = None, doubled: bool = False,
) -> tuple[Tensor, RunningStats | None]:  # fmt: skip
    """Batch norm with each member's own batch statistics, then (leaky) ReLU with that slope below 0 (1: none).

    Answers the output and the running statistics after this batch. `reader`, the layer that alone reads the output, and
    `doubled`, whether an upsampling goes before that, serve the kernels.
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
    return out, RunningStats(moved[0], moved[1], count, running.momentum)


def upsample(x: Tensor) -> Tensor:
    """Every pixel of [N, B, C, H, W] four times."""
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


def apply_to_images(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer without parameters on images [N, B, C, H, W]."""
    out: Tensor = layer(x.flatten(0, 1))
    return out.unflatten(0, x.shape[:2])


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
    """x [N, B, C, H, W], weight [N, O, C/groups, k, k] -> [N, B, O, H', W']; padding, stride, … as the module has them.

    `normed` and `after` as in `linear`; `pool_after`: what comes out goes through it.
    """
    if pool_after is not None:
        return apply_to_images(pool_after, conv2d(x, weight, bias, like, upsample_first))
    if after is not None:
        return after(conv2d(x, weight, bias, like, upsample_first))
    x = upsample(x) if upsample_first else x
    return torch.stack([
        like._conv_forward(one, w, b)
        for one, w, b in zip(x, weight, bias if bias is not None else [None] * len(x), strict=True)
    ])  # fmt: skip


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.ConvTranspose2d, normed: bool = False,
    after: Epilogue | None = None,
) -> Tensor:  # fmt: skip
    if after is not None:
        return after(conv_transpose2d(x, weight, bias, like))
    return torch.stack([
        F.conv_transpose2d(one, w, b, like.stride, like.padding, like.output_padding, like.groups, like.dilation)  # type: ignore[arg-type]
        for one, w, b in zip(x, weight, bias if bias is not None else [None] * len(x), strict=True)
    ])  # fmt: skip
