"""Define operations on all members at once in plain PyTorch: x `[N, B, …]`, with a weight for each member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd import rng
from ganherd.nets.common.spectral import divide as divide  # works for stacked weights as it is

Bias = Tensor | None
Product = Callable[[Tensor, Tensor, Bias], Tensor]  # x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]
MomentsOf = Callable[[Tensor, list[int]], tuple[Tensor, Tensor]]  # x, axes -> variance and mean over these axes


def refine_keys(keys: Tensor, number: int) -> Tensor:
    """Derive the keys [N] of one draw from the keys of its module."""
    if keys.is_cuda:
        return rng.device_keys(keys, number)
    return torch.from_numpy(rng.keys(keys.numpy(), number))


@dataclass(frozen=True)
class Epilogue:
    """What is applied to the output of a convolution or linear layer: a (leaky) ReLU, then dropout."""

    slope: float = 1.0  # of the activation below 0; 1: no activation
    p: float = 0.0  # probability of dropout
    keys: Tensor | None = None  # [N] the module's keys; None: no dropout
    call: int = 0  # the number of the draw in the module

    def __call__(self, x: Tensor) -> Tensor:
        """Apply activation and dropout to x [N, B, …]."""
        if self.keys is not None:
            return dropout(x, self.p, refine_keys(self.keys, self.call), self.slope)
        return x if self.slope == 1.0 else F.leaky_relu(x, self.slope)


@dataclass(frozen=True)
class Fusions:
    """What a convolution or linear layer computes in addition to its product."""

    flatten: bool = False  # flatten the input of a linear layer to [N, B, I]
    unflatten: tuple[int, ...] = ()  # unflatten the output of a linear layer to this shape; (): do not
    upsample: bool = False  # double height and width of the input of a convolution
    pool: nn.AvgPool2d | None = None  # applied to the output of a convolution
    epilogue: Epilogue | None = None  # applied to the output at the end
    feeds_norm: bool = False  # only a batch norm reads the output, which cancels the bias; only kernels use this

    def finish(self, out: Tensor, pool: Callable[[nn.Module, Tensor], Tensor] | None = None) -> Tensor:
        """Apply the pooling and the epilogue to the output of a convolution or linear layer.

        Args:
            pool: Applies the pooling, (layer, images) -> images; None: `apply_to_images`.
        """
        if self.pool is not None:
            out = (pool or apply_to_images)(self.pool, out)
        return self.epilogue(out) if self.epilogue else out


def linear(
    x: Tensor, weight: Tensor, bias: Bias, fusions: Fusions = Fusions(), product: Product | None = None
) -> Tensor:
    """Run linear layers: x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]; further axes between B and I stay.

    Args:
        product: Computes the product; None: `BatchedLinear`.
    """
    x = x.flatten(2) if fusions.flatten else x
    flat = x.flatten(1, -2) if x.dim() > 3 else x
    if torch.is_autocast_enabled(x.device.type):  # cast here, because autocast does not cover custom backward passes
        low = torch.get_autocast_dtype(x.device.type)
        flat, weight, bias = flat.to(low), weight.to(low), None if bias is None else bias.to(low)
    out = (product or BatchedLinear.apply)(flat, weight, bias)
    if x.dim() > 3:
        out = out.unflatten(1, x.shape[1:-1])
    if fusions.unflatten:
        out = out.unflatten(2, fusions.unflatten)
    return fusions.finish(out)


class BatchedLinear(torch.autograd.Function):
    """Linear layers: x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]. Differentiable twice.

    PyTorch's gradient of a transposed weight is transposed as well, and undoing that takes a quarter of the layer's time on
    a CPU. This backward pass computes the gradient in the layout of the weight.
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function without inspecting its signature, which would take as long as a small product."""
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        transposed = weight.transpose(1, 2)
        return torch.bmm(x, transposed) if bias is None else torch.baddbmm(bias[:, None], x, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(dy, weight) if needs_x else None,
            torch.bmm(dy.transpose(1, 2), x) if needs_weight else None,
            dy.sum(1) if needs_bias else None,
        )


def rows_of(weight: Tensor, y: Tensor) -> Tensor:
    """Return the rows y [N, B] of weight [N, R, C], [N, B, C], with a deterministic gradient."""
    rows: Tensor = MemberRows.apply(weight, y)  # type: ignore[no-untyped-call]
    return rows


class MemberRows(torch.autograd.Function):
    """Rows of a table for each member: weight [N, R, C], y [N, B] -> [N, B, C]. Differentiable twice.

    The gradient is a product with one-hot rows, because that of indexing is not deterministic on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        ctx.rows = weight.shape[1]
        return weight.gather(1, y[..., None].expand(*y.shape, weight.shape[2]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        one_hot = y[:, None] == torch.arange(ctx.rows, device=y.device)[:, None]  # [N, R, B]
        with torch.autocast(grad.device.type, enabled=False):
            return one_hot.to(grad.dtype) @ grad, None


def join_members(each: list[Tensor]) -> Tensor:
    """Stack the values of all members, as `torch.stack` does, in time that grows with their number even for second derivatives."""
    out: Tensor = MemberStack.apply(*each)  # type: ignore[no-untyped-call]
    return out


class MemberStack(torch.autograd.Function):
    """A stack whose gradient is divided among the members at once.

    PyTorch's selects one member after another. The derivative of each selection is a tensor of zeros for all members, so that
    a second derivative, as R1 takes, would write members × members of them.
    """

    @staticmethod
    def forward(ctx: Any, *each: Tensor) -> Tensor:
        return torch.stack(each)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.unbind()


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    """Apply a (leaky) ReLU with this slope below 0 (1: none), then dropout with masks from each member's stream."""
    x = x if slope == 1.0 else F.leaky_relu(x, slope)
    mask = (rng.draw(keys, x.shape[1:], "uniform", torch.float32) >= p).to(x.dtype)
    return x * (mask / (1.0 - p) if p < 1.0 else mask)


def dropout_channels(x: Tensor, p: float, keys: Tensor) -> Tensor:
    """Drop whole channels of x [N, B, C, …] with masks from each member's stream."""
    mask = (rng.draw(keys, (*x.shape[1:3], *(1,) * (x.dim() - 3)), "uniform", torch.float32) >= p).to(x.dtype)
    return x * (mask / (1.0 - p) if p < 1.0 else mask)


def without_gradient(weight: Tensor, row: int) -> Tensor:
    """Return weight [..., R, C] with one row that gets no gradient."""
    rows = torch.arange(weight.shape[-2], device=weight.device)[:, None]
    return torch.where(rows == row % weight.shape[-2], weight.detach(), weight)


def per_channel(value: Tensor, x: Tensor) -> Tensor:
    """Reshape a value [N, C] so that it broadcasts with x [N, B, C, …]."""
    return value.reshape(value.shape[0], 1, value.shape[1], *(1,) * (x.dim() - 3))


def normalise(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Apply a batch norm with given statistics [N, C]."""
    scale = torch.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return x * per_channel(scale, x) + per_channel(shift, x)


@dataclass(frozen=True)
class RunningStats:
    """Running statistics of a batch norm."""

    mean: Tensor  # [N, C]
    var: Tensor  # [N, C]
    count: Tensor  # [N] the number of batches so far
    momentum: float | None  # None: a plain average over all batches


def var_mean(x: Tensor, over: list[int]) -> tuple[Tensor, Tensor]:
    """Return variance and mean over these axes."""
    return torch.var_mean(x, over, correction=0)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: RunningStats | None,
    reader: nn.Module | None = None, doubled: bool = False, moments: MomentsOf = var_mean,
) -> tuple[Tensor, RunningStats | None]:  # fmt: skip
    """Apply a batch norm with each member's batch statistics, then a (leaky) ReLU with this slope below 0 (1: none).

    Args:
        reader: The layer that alone reads the output; only kernels use this.
        doubled: Whether an upsampling comes before `reader`; only kernels use this.
        moments: Computes the batch statistics.

    Returns:
        The output, and the running statistics after this batch.
    """
    over = [d for d in range(x.dim()) if d not in (0, 2)]
    var, mean = moments(x if x.dtype == torch.float64 else x.float(), over)
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
        new_mean, new_var = (
            old * (1 - share) + new.to(old.dtype) * share
            for old, new in ((running.mean, mean), (running.var, unbiased))
        )
    return out, RunningStats(new_mean, new_var, count, running.momentum)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift a normalised tensor by values that broadcast with it."""
    if weight is not None and bias is not None:
        return torch.addcmul(bias, x, weight)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Apply a group norm to x [N, B, C, …], with weight and bias [N, C]."""
    normed = F.group_norm(x.flatten(0, 1), groups, eps=eps).unflatten(0, x.shape[:2])
    return _affine(normed, *(None if value is None else per_channel(value, x) for value in (weight, bias)))


def instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Apply an instance norm to x [N, B, C, …], with weight and bias [N, C]."""
    normed = F.instance_norm(x.flatten(0, 1), eps=eps).unflatten(0, x.shape[:2])
    return _affine(normed, *(None if value is None else per_channel(value, x) for value in (weight, bias)))


def layer_norm(
    x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float | None, rms: bool = False
) -> Tensor:
    """Apply a layer norm over the last axes of x [N, …], which have this shape, with weight and bias [N, *shape].

    Args:
        rms: Divide by the root of the mean square alone.
    """
    normed = F.rms_norm(x, shape, eps=eps) if rms else F.layer_norm(x, shape, eps=1e-5 if eps is None else eps)
    between = (1,) * (x.dim() - 1 - len(shape))
    each = (None if value is None else value.reshape(len(x), *between, *shape) for value in (weight, bias))
    return _affine(normed, *each)


def upsample(x: Tensor) -> Tensor:
    """Double height and width of images [N, B, C, H, W] by repeating pixels; of [N, C, H, W], as `nn.Upsample` does, the width."""
    x = x.repeat_interleave(2, -1)
    return x if x.dim() == 4 else x.repeat_interleave(2, -2)


def doubles(layer: nn.Module | None, mode: str = "nearest") -> bool:
    """Return whether a layer is an upsampling by exactly 2 in this mode, whose corners are not aligned."""
    return (
        type(layer) is nn.Upsample
        and layer.mode == mode
        and not layer.align_corners
        and layer.size is None
        and layer.scale_factor in (2, 2.0, (2, 2), (2.0, 2.0))
    )


def halves(layer: nn.Module | None) -> bool:
    """Return whether a layer averages every 2×2 pixels."""
    return (
        type(layer) is nn.AvgPool2d
        and (layer.kernel_size, layer.stride, layer.padding) in ((2, 2, 0), ((2, 2), (2, 2), (0, 0)))
        and layer.divisor_override is None
    )


def apply_to_images(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer without parameters to images [N, B, C, H, W]."""
    out: Tensor = layer(x.flatten(0, 1))
    return out.reshape(*x.shape[:2], *out.shape[1:])


def conv2d(x: Tensor, weight: Tensor, bias: Bias, like: nn.Conv2d, fusions: Fusions = Fusions()) -> Tensor:
    """Run convolutions: x [N, B, C, H, W], weight [N, O, C/groups, k, k] -> [N, B, O, H', W'].

    Args:
        like: The layer that defines stride, padding, dilation and groups.
    """
    x = upsample(x) if fusions.upsample else x
    if like.groups > 1 and like.padding_mode == "zeros":
        settings: Any = {"stride": like.stride, "padding": like.padding, "dilation": like.dilation}
        out = _members_as_groups(F.conv2d, x, weight, bias, like.groups, settings)
    else:
        biases = bias if bias is not None else [None] * len(x)
        out = join_members([like._conv_forward(*one) for one in zip(x, weight, biases, strict=True)])
    return fusions.finish(out)


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Bias, like: nn.ConvTranspose2d, fusions: Fusions = Fusions()
) -> Tensor:
    """Run transposed convolutions: x [N, B, C, H, W], weight [N, C, O/groups, k, k] -> [N, B, O, H', W']; see `conv2d`."""
    settings: Any = {"stride": like.stride, "padding": like.padding, "dilation": like.dilation}
    settings["output_padding"] = like.output_padding
    if like.groups > 1:
        out = _members_as_groups(F.conv_transpose2d, x, weight, bias, like.groups, settings)
    else:
        biases = bias if bias is not None else [None] * len(x)
        out = join_members([F.conv_transpose2d(*one, **settings) for one in zip(x, weight, biases, strict=True)])
    return fusions.finish(out)


def _members_as_groups(function: Any, x: Tensor, weight: Tensor, bias: Bias, groups: int, settings: Any) -> Tensor:
    """Run convolutions with groups as one convolution: each group of each member is a group."""
    flat_bias = None if bias is None else bias.flatten()
    flat = x.transpose(0, 1).flatten(1, 2)  # [B, N * C, H, W]
    out: Tensor = function(flat, weight.flatten(0, 1), flat_bias, groups=len(x) * groups, **settings)
    return out.reshape(len(out), len(x), -1, *out.shape[2:]).transpose(0, 1)
