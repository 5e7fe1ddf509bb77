"""The library of operations on all N members (GANs) at once in plain PyTorch; it defines the results of the others.

Inputs x are `[N, B, …]` for B samples, and weights and biases have the member axis first, too: each member has its own.
"""

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
MomentsOf = Callable[[Tensor, list[int]], tuple[Tensor, Tensor]]  # (x, axes) -> variance and mean of x over these axes


def refine_keys(keys: Tensor, number: int) -> Tensor:
    """Return the members' keys [N] for one random draw, derived from the keys [N] for a call of a module.

    Args:
        number: The number of the draw in the call.
    """
    if keys.is_cuda:
        return rng.device_keys(keys, number)
    return torch.from_numpy(rng.keys(keys.numpy(), number))


@dataclass(frozen=True)
class Epilogue:
    """The layers that a convolution or linear layer also applies to its output: a (leaky) ReLU, then dropout."""

    slope: float = 1.0  # of the activation below 0; 1: no activation
    p: float = 0.0  # probability of dropout
    keys: Tensor | None = None  # [N] the members' keys for this call of the module; None: no dropout
    call: int = 0  # the number of the dropout's draw in this call

    def __call__(self, x: Tensor) -> Tensor:
        """Apply activation and dropout to x [N, B, …]."""
        if self.keys is not None:
            return dropout(x, self.p, refine_keys(self.keys, self.call), self.slope)
        return x if self.slope == 1.0 else F.leaky_relu(x, self.slope)


@dataclass(frozen=True)
class Fusions:
    """The neighbouring layers that a convolution or linear layer computes in addition to its own product."""

    flatten: bool = False  # flatten the input of a linear layer to [N, B, I]
    unflatten: tuple[int, ...] = ()  # unflatten the output of a linear layer to this shape; (): do not
    upsample: bool = False  # double height and width of the input of a convolution
    pool: nn.AvgPool2d | None = None  # applied to the output of a convolution
    epilogue: Epilogue | None = None  # applied to the output at the end
    feeds_norm: bool = False  # only a batch norm reads the output, so that the bias has no effect; for kernels

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
    """Run linear layers: x [N, B, I], weight [N, O, I], bias [N, O] -> [N, B, O]. Differentiable twice.

    The product uses the transposed weight, and PyTorch would compute the gradient of that, [N, I, O]. Transposing it
    back takes a quarter of the layer's time on a CPU. This backward pass computes the gradient in the layout of the
    weight.
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
    """Return rows of each member's table, [N, B, C], with a deterministic gradient.

    Args:
        weight: [N, R, C] the tables.
        y: [N, B] indices of rows.
    """
    rows: Tensor = MemberRows.apply(weight, y)  # type: ignore[no-untyped-call]
    return rows


class MemberRows(torch.autograd.Function):
    """Look up rows of each member's table: weight [N, R, C], y [N, B] -> [N, B, C]. Differentiable twice.

    The gradient is computed as a product with a one-hot matrix of y, because PyTorch's gradient of indexing is not
    deterministic on a GPU.
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
    """Return `torch.stack(each)` for one tensor of each member, with a cheaper second derivative; see `MemberStack`."""
    out: Tensor = MemberStack.apply(*each)  # type: ignore[no-untyped-call]
    return out


class MemberStack(torch.autograd.Function):
    """Stack one tensor of each member to [N, …]. The backward pass splits the gradient by a single `unbind`.

    PyTorch's own backward pass selects one member after another. The derivative of each selection is a tensor of zeros
    for all members, so that a second derivative, e.g. of an R1 penalty, would write N × N of them.
    """

    @staticmethod
    def forward(ctx: Any, *each: Tensor) -> Tensor:
        return torch.stack(each)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.unbind()


def dropout(x: Tensor, p: float, keys: Tensor, slope: float = 1.0) -> Tensor:
    """Apply a (leaky) ReLU to x [N, …], then dropout with masks from each member's random stream.

    Args:
        p: Probability of dropout.
        keys: [N] the members' keys for this draw.
        slope: Slope of the activation below 0; 1 means no activation.
    """
    x = x if slope == 1.0 else F.leaky_relu(x, slope)
    mask = (rng.draw(keys, x.shape[1:], "uniform", torch.float32) >= p).to(x.dtype)
    return x * (mask / (1.0 - p) if p < 1.0 else mask)


def dropout_channels(x: Tensor, p: float, keys: Tensor) -> Tensor:
    """Drop whole channels of x [N, B, C, …] with probability p, with masks drawn by the members' keys [N]."""
    mask = (rng.draw(keys, (*x.shape[1:3], *(1,) * (x.dim() - 3)), "uniform", torch.float32) >= p).to(x.dtype)
    return x * (mask / (1.0 - p) if p < 1.0 else mask)


def without_gradient(weight: Tensor, row: int) -> Tensor:
    """Return a weight [..., R, C] with the same numbers, in which the row with this index gets no gradient."""
    rows = torch.arange(weight.shape[-2], device=weight.device)[:, None]
    return torch.where(rows == row % weight.shape[-2], weight.detach(), weight)


def per_channel(value: Tensor, x: Tensor) -> Tensor:
    """Return a value [N, C] reshaped to [N, 1, C, 1, …], so that it broadcasts with x [N, B, C, …]."""
    return value.reshape(value.shape[0], 1, value.shape[1], *(1,) * (x.dim() - 3))


def normalise(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the batch norm of x [N, B, C, …] with given statistics, weight and bias, [N, C] each."""
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
    """Return the (biased) variance and the mean of x over these axes."""
    return torch.var_mean(x, over, correction=0)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, slope: float, running: RunningStats | None,
    reader: nn.Module | None = None, doubled: bool = False, moments: MomentsOf = var_mean,
) -> tuple[Tensor, RunningStats | None]:  # fmt: skip
    """Apply a batch norm to x [N, B, C, …] with each member's batch statistics, then a (leaky) ReLU.

    Args:
        weight, bias: [N, C] or None.
        slope: Slope of the activation below 0; 1 means no activation.
        running: Running statistics before this batch; None: there are none.
        reader, doubled: Ignored; libraries of kernels need them.
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
    """Return a normalised tensor times weight plus bias, which broadcast with it; None leaves either out."""
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
    """Apply a layer norm over the last axes of x [N, …], which have this shape.

    Args:
        weight, bias: [N, *shape] or None.
        eps: None: the default of PyTorch.
        rms: Apply a root-mean-square norm instead, which does not subtract the mean.
    """
    normed = F.rms_norm(x, shape, eps=eps) if rms else F.layer_norm(x, shape, eps=1e-5 if eps is None else eps)
    between = (1,) * (x.dim() - 1 - len(shape))
    each = (None if value is None else value.reshape(len(x), *between, *shape) for value in (weight, bias))
    return _affine(normed, *each)


def upsample(x: Tensor) -> Tensor:
    """Double height and width of images x [N, B, C, H, W] by repeating pixels.

    For x [N, B, C, W] only the width is doubled, as by `nn.Upsample` for a batch [B, C, W].
    """
    x = x.repeat_interleave(2, -1)
    return x if x.dim() == 4 else x.repeat_interleave(2, -2)


def doubles(layer: nn.Module | None, mode: str = "nearest") -> bool:
    """Return whether a layer is an `nn.Upsample` by exactly 2 in this mode, without `align_corners`."""
    return (
        type(layer) is nn.Upsample
        and layer.mode == mode
        and not layer.align_corners
        and layer.size is None
        and layer.scale_factor in (2, 2.0, (2, 2), (2.0, 2.0))
    )


def halves(layer: nn.Module | None) -> bool:
    """Return whether a layer is an `nn.AvgPool2d` that averages blocks of 2 × 2 pixels."""
    return (
        type(layer) is nn.AvgPool2d
        and (layer.kernel_size, layer.stride, layer.padding) in ((2, 2, 0), ((2, 2), (2, 2), (0, 0)))
        and layer.divisor_override is None
    )


def apply_to_images(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer without parameters to images [N, B, C, H, W], with members and samples joined to one batch axis."""
    out: Tensor = layer(x.flatten(0, 1))
    return out.reshape(*x.shape[:2], *out.shape[1:])


def conv2d(x: Tensor, weight: Tensor, bias: Bias, like: nn.Conv2d, fusions: Fusions = Fusions()) -> Tensor:
    """Run convolutions: x [N, B, C, H, W], weight [N, O, C/groups, k, k], bias [N, O] -> [N, B, O, H', W'].

    Args:
        like: A layer with the stride, padding, dilation and groups of the convolution; its own weights are not used.
        fusions: The neighbouring layers to compute as well.
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
    """Run the members' convolutions with groups as one convolution with N · groups groups; return [N, B, O, H', W'].

    Args:
        function: `F.conv2d` or `F.conv_transpose2d`.
        settings: Its further arguments, e.g. the stride.
    """
    flat_bias = None if bias is None else bias.flatten()
    flat = x.transpose(0, 1).flatten(1, 2)  # [B, N * C, H, W]
    out: Tensor = function(flat, weight.flatten(0, 1), flat_bias, groups=len(x) * groups, **settings)
    return out.reshape(len(out), len(x), -1, *out.shape[2:]).transpose(0, 1)
