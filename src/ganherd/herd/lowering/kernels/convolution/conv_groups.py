"""Run convolutions with groups of channels on a GPU in faster ways than cuDNN.

Depending on their sizes they run as convolutions of more members (GANs), as batched products, or as weighted sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.kernels.convolution.regroup import Regroup
from ganherd.herd.lowering.kernels.weight_cache import cache_weights
from ganherd.herd.lowering.ops import Bias

Convolution = nn.Conv2d | nn.ConvTranspose2d


def groups_as_members(
    run: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Bias, like: Convolution, dtype: torch.dtype
) -> Tensor:
    """Run a convolution with groups as one without: each group of each of the N members becomes a member of its own.

    Args:
        run: A convolution without groups of N * groups members, (x, weight, bias, like) -> output.
        x: [N, B, C, H, W].
        weight, bias: [N, …] in the layout of the module.
        like: The module that defines groups, stride and padding.
        dtype: The dtype of the computation.

    Returns:
        The output [N, B, O, H', W'].
    """
    groups = like.groups
    one_sample = x.shape[1] == 1  # e.g. a modulated convolution, whose weights are computed for each sample
    if one_sample:  # x is stored channel by channel, so that these are views without a copy
        x = x.unflatten(2, (groups, -1)).transpose(1, 2).flatten(0, 1)  # [N * groups, 1, C, H, W]
    else:  # x is stored with channels last, and so is the output
        rows = x.permute(0, 1, 3, 4, 2).to(dtype).contiguous()  # [N, B, H, W, groups * C]
        x = Regroup.apply(rows.flatten(1, 3).unflatten(2, (groups, -1)), True)
        x = x.flatten(0, 1).unflatten(1, rows.shape[1:4]).permute(0, 1, 4, 2, 3)
    weight = weight.unflatten(1, (groups, -1)).flatten(0, 1)
    bias = None if bias is None else bias.unflatten(1, (groups, -1)).flatten(0, 1)
    with cache_weights(keep=False) if one_sample else nullcontext():
        out: Tensor = run(x, weight, bias, one_group(like))
    if one_sample:
        return out.unflatten(0, (-1, groups)).transpose(1, 2).flatten(2, 3)
    rows = out.permute(0, 1, 3, 4, 2).contiguous()  # [N * groups, B, H, W, O]
    together: Tensor = Regroup.apply(rows.flatten(1, 3).unflatten(0, (-1, groups)), False)  # [N, B * H * W, groups, O]
    return together.flatten(2).unflatten(1, rows.shape[1:4]).permute(0, 1, 4, 2, 3)


def one_group(like: Convolution) -> Convolution:
    """Return a copy of a convolution module with the settings of one of its groups: one group, only its channels."""
    copied = copy.copy(like)
    copied.groups, copied.in_channels, copied.out_channels = (
        1, like.in_channels // like.groups, like.out_channels // like.groups,
    )  # fmt: skip
    return copied


def weighted_sums(x: Tensor, weight: Tensor, bias: Bias, dtype: torch.dtype) -> Tensor:
    """Run a depthwise convolution whose kernel is as large as its input x [N, B, C, H, W], and return [N, B, C, 1, 1].

    Its output is a weighted sum of each channel. cuDNN would process one channel after another in the second
    derivative.

    Args:
        weight: [N, C, 1, H, W].
        bias: [N, C] or None.
    """
    out = (x * weight.transpose(1, 2)).sum((3, 4), keepdim=True)  # the weight: [N, 1, C, H, W]
    return (out if bias is None else out + ops.per_channel(bias, out)).to(dtype)


def products_of_groups(x: Tensor, weight: Tensor, bias: Bias, groups: int) -> Tensor:
    """Run a 1×1 convolution of x [N, B, C, H, W] with groups as a batched matrix product, and return [N, B, O, H, W].

    This is for groups that have too few channels for a convolution kernel.
    """
    columns = x.unflatten(2, (groups, -1)).flatten(4)  # [N, B, groups, C, H * W]
    matrices = weight.flatten(2).unflatten(1, (groups, -1))[:, None]  # [N, 1, groups, O, C]
    out: Tensor = torch.matmul(matrices, columns).flatten(2, 3).unflatten(3, x.shape[3:])
    return out if bias is None else (out + ops.per_channel(bias, out)).to(out.dtype)
