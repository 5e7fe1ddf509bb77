"""Residual nets without normalisation, as in R3GAN (Huang et al., 2024): 1x1, grouped 3x3 and 1x1 convolutions of one width.

Each block starts as the identity (Fixup), and maps are resampled bilinearly. They are made for `loss.name: relativistic-pairing`
with `loss.r1_weight` and `loss.r2_weight`. R3GAN's own nets at 32 px have `width: 768`, and no tanh at the end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ganherd.nets.common.blocks import leaky
from ganherd.nets.common.bodies import stages
from ganherd.nets.common.resampling import upsample_bilinear

_LAYERS = 3  # of a block


class GroupedBlock(nn.Module):
    """A residual block: 1x1 convolution to more channels, 3x3 in groups, 1x1 back. The last one is initialised to zero."""

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
    """Return this many stages of blocks, initialised by Fixup (Zhang et al., 2019).

    Blocks start as the identity, and an update changes the output equally however many there are.
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
    """A learnt 4x4 map for each channel, weighted by the noise; then blocks at each size up to the image."""

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
    """The generator in reverse order: blocks at each size down to 4 px, and a learnt weight for each number of the last maps."""

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
