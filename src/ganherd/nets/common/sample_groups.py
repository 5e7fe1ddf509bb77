"""Discriminators that see several samples at once: minibatch standard deviation, and packing as in PacGAN."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from ganherd.nets.common.blocks import Make


def append_deviation(x: Tensor, group: int) -> Tensor:
    """Return x [B, C, …] with one more channel: the mean standard deviation of all features over a group of samples.

    Args:
        group: Number of samples; the largest divisor of B up to it is used.

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
    """Return packs [B / samples, C * samples, …] of consecutive samples x [B, C, …], joined along channels.

    If they do not fill the last pack, samples from the start fill it.

    >>> pack(torch.arange(6.0).reshape(3, 2), 2).tolist()
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 0.0, 1.0]]
    """
    missing = -x.shape[0] % samples
    if missing:
        x = torch.cat([x, *[x] * (missing // x.shape[0]), x[: missing % x.shape[0]]])
    return x.reshape(-1, samples * x.shape[1], *x.shape[2:])


def unpack(logits: Tensor, samples: int, batch: int) -> Tensor:
    """Return the logit of each sample's pack, [batch], from those of packs."""
    return logits[:, None].expand(-1, samples).reshape(-1)[:batch]


for _function in ("append_deviation", "pack", "unpack"):
    fx.wrap(_function)  # traced as one operation


class MinibatchDeviation(nn.Module):
    """Append the standard deviation over a group of samples to their features (Karras et al., 2018)."""

    def __init__(self, group: int) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return append_deviation(x, self.group)


def with_deviation(module: nn.Module, group: int) -> nn.Module:
    """Let a discriminator's last layer also see the deviation over a group of samples, with a weight that starts at 0.

    A discriminator may name another layer in its attribute `deviation_before`.
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
    """A discriminator of packs of samples (Lin et al., 2018). Each sample gets the logit of its pack."""

    def __init__(self, make: Make, shape: tuple[int, ...], samples: int) -> None:
        super().__init__()
        self.net, self.samples = make(shape=(shape[0] * samples, *shape[1:])), samples

    def forward(self, x: Tensor) -> Tensor:
        return unpack(self.net(pack(x, self.samples)), self.samples, x.shape[0])
