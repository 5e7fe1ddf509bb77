"""Discriminators that see several samples at once: minibatch standard deviation, and packing as in PacGAN."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from ganherd.nets.common.blocks import Make


def append_deviation(x: Tensor, group: int) -> Tensor:
    """Return x [B, C, …] with one more channel: a number for how much the samples of a group differ.

    The number, the same for all samples of a group, is the standard deviation of each feature over the group, averaged
    over all features. A discriminator can then see that a generator's samples are too similar.

    Args:
        x: Features of B samples; consecutive ones form a group.
        group: The number of samples in a group; if it does not divide B, the largest smaller divisor of B is used.

    >>> append_deviation(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), 4).round(decimals=3).tolist()
    [[1.0, 2.0, 1.5], [3.0, 6.0, 1.5]]
    """
    batch = x.shape[0]
    group = max(number for number in range(1, group + 1) if batch % number == 0)
    grouped = x.reshape(batch // group, group, -1)
    grouped = grouped if x.dtype == torch.float64 else grouped.float()
    centred = grouped - grouped.mean(1, keepdim=True)
    deviation = (centred.square().mean(1) + 1e-8).sqrt().mean(1)  # [B / group]
    channel = deviation[:, None].expand(-1, group).reshape(batch, 1, *(1,) * (x.dim() - 2))
    return torch.cat([x, channel.to(x.dtype).expand(-1, 1, *x.shape[2:])], 1)


def pack(x: Tensor, samples: int) -> Tensor:
    """Join consecutive samples x [B, C, …] along channels, and return packs [packs, C * samples, …].

    A pack holds `samples` of them. The number of packs is B / samples, rounded up. If the last pack is not full,
    samples from the start of the batch fill it.

    >>> pack(torch.arange(6.0).reshape(3, 2), 2).tolist()
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 0.0, 1.0]]
    """
    missing = -x.shape[0] % samples
    if missing:
        x = torch.cat([x, *[x] * (missing // x.shape[0]), x[: missing % x.shape[0]]])
    return x.reshape(-1, samples * x.shape[1], *x.shape[2:])


def unpack(logits: Tensor, samples: int, batch: int) -> Tensor:
    """Return for each of `batch` samples the logit of its pack, [batch], from the logits of the packs [packs]."""
    return logits[:, None].expand(-1, samples).reshape(-1)[:batch]


for _function in ("append_deviation", "pack", "unpack"):
    fx.wrap(_function)  # torch.fx then traces it as one operation


class MinibatchDeviation(nn.Module):
    """Append the standard deviation over a group of samples to their features (Karras et al., 2018)."""

    def __init__(self, group: int) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return append_deviation(x, self.group)


def with_deviation(module: nn.Module, group: int) -> nn.Module:
    """Insert `MinibatchDeviation` before a discriminator's last layer, in place, and return the discriminator.

    The weight of the additional input starts at 0. A discriminator may choose another layer than the last by naming it
    in its attribute `deviation_before`.
    """
    products = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    name = getattr(module, "deviation_before", "head" if "head" in products else products[-1])
    layer = module.get_submodule(name)
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    layer.weight = nn.Parameter(torch.cat([layer.weight.detach(), torch.zeros_like(layer.weight[:, :1])], 1))
    if isinstance(layer, nn.Linear):
        layer.in_features += 1
    else:
        layer.in_channels += 1
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, nn.Sequential(MinibatchDeviation(group), layer))
    return module


class PackedDiscriminator(nn.Module):
    """A discriminator of packs of samples (PacGAN, Lin et al., 2018); each sample gets the logit of its pack."""

    def __init__(self, make: Make, shape: tuple[int, ...], samples: int) -> None:
        super().__init__()
        self.net, self.samples = make(shape=(shape[0] * samples, *shape[1:])), samples

    def forward(self, x: Tensor) -> Tensor:
        return unpack(self.net(pack(x, self.samples)), self.samples, x.shape[0])
