"""Residual nets without normalisation, as in R3GAN (Huang et al., 2024), with the same number of channels at all sizes.

A block is a 1x1, a grouped 3x3 and a 1x1 convolution, and starts as the identity (Fixup). Maps are resampled
bilinearly. The nets are made for `loss.name: relativistic-pairing` with `loss.r1_weight` and `loss.r2_weight`. R3GAN's
own nets at 32 px have `width: 768`, and no tanh at the end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ganherd.nets.common.blocks import leaky
from ganherd.nets.common.bodies import stages
from ganherd.nets.common.resampling import upsample_bilinear

_LAYERS = 3  # convolutions in a block


class GroupedBlock(nn.Module):
    """A residual block: a 1x1 convolution to more channels, a 3x3 in groups, and a 1x1 back to `width` channels."""

    def __init__(self, width: int, expansion: int, group: int) -> None:
        super().__init__()
        inner = width * expansion
        groups = math.gcd(inner, max(1, inner // group))
        self.layers = nn.Sequential(
            nn.Conv2d(width, inner, 1),
            leaky(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=groups),
            leaky(),
            nn.Conv2d(inner, width, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def grouped_stages(number: int, blocks: int, width: int, expansion: int, group: int) -> nn.ModuleList:
    """Return this many stages of `blocks` residual blocks each, initialised by Fixup (Zhang et al., 2019).

    Fixup replaces normalisation: the last convolution of each block starts at 0, so blocks start as the identity, and
    the others are scaled down with the number of blocks, so that an update changes the output equally for any number of
    blocks.

    Args:
        number: The number of stages, one for each size of the maps.
        blocks: The number of blocks in a stage.
        width: The number of channels between blocks.
        expansion: Multiple of `width` inside of a block.
        group: The number of channels in a group of the 3x3 convolutions.
    """
    every = [[GroupedBlock(width, expansion, group) for _ in range(blocks)] for _ in range(number)]
    for block in (block for stage in every for block in stage):
        *inner, last = (layer for layer in block.modules() if isinstance(layer, nn.Conv2d))
        for layer in inner:
            nn.init.kaiming_normal_(layer.weight, 0.2)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
            with torch.no_grad():
                layer.weight.mul_((number * blocks) ** (-1 / (2 * _LAYERS - 2)))
        nn.init.zeros_(last.weight)
    return nn.ModuleList(nn.Sequential(*stage) for stage in every)


class R3ganGenerator(nn.Module):
    """R3GAN's generator: a learnt 4x4 map for each channel, weighted by the noise; then blocks at each size."""

    def __init__(
        self,
        shape: tuple[int, ...],
        latent: int,
        *,
        width: int = 256,
        blocks: int = 2,
        group: int = 16,
        expansion: int = 2,
    ) -> None:
        super().__init__()
        self.size, doublings = shape[1:], len(stages(shape, width)) - 1
        self.first = nn.Linear(latent, width, bias=False)
        self.basis = nn.Parameter(torch.randn(width, *(math.ceil(side / 2**doublings) for side in self.size)))
        self.stages = grouped_stages(doublings + 1, blocks, width, expansion, group)
        self.last = nn.Conv2d(width, shape[0], 1)
        nn.init.kaiming_normal_(self.first.weight, nonlinearity="linear")
        nn.init.kaiming_normal_(self.last.weight, nonlinearity="linear")
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        x = self.first(z)[:, :, None, None] * self.basis  # [B, C, 4, 4]
        for i, stage in enumerate(self.stages):
            x = stage(upsample_bilinear(x) if i else x)
        out = torch.tanh(self.last(x))
        return out[:, :, : self.size[0], : self.size[1]]  # [B, C, H, W]


class R3ganDiscriminator(nn.Module):
    """R3GAN's discriminator: blocks at each size down to 4 px, a learnt weighted sum over positions, and a linear head."""

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int = 1,
        *,
        width: int = 256,
        blocks: int = 2,
        group: int = 16,
        expansion: int = 2,
    ) -> None:
        super().__init__()
        halvings = len(stages(shape, width)) - 1
        self.first = nn.Conv2d(shape[0], width, 1)
        self.stages = grouped_stages(halvings + 1, blocks, width, expansion, group)
        self.pools = nn.ModuleList(nn.AvgPool2d(2, ceil_mode=True) for _ in range(halvings))
        sides = [math.ceil(side / 2**halvings) for side in shape[1:]]
        self.basis = nn.Parameter(torch.randn(width, *sides) / math.sqrt(math.prod(sides)))
        self.head = nn.Linear(width, outputs)
        nn.init.kaiming_normal_(self.first.weight, nonlinearity="linear")
        nn.init.kaiming_normal_(self.head.weight, nonlinearity="linear")
        for layer in (self.first, self.head):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, stage in enumerate(self.stages):
            x = stage(self.pools[i - 1](x) if i else x)  # averages of 2x2 are bilinear
        logits: Tensor = self.head((x * self.basis).sum((2, 3)))  # [B, outputs]
        return logits.squeeze(1)  # [B], or [B, outputs]
