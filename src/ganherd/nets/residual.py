"""Residual nets for images of any size, about 3 M parameters each at 32 px: blocks as in SNGAN, self-attention as in SAGAN.

The generator's first maps are 4 px wide, and every block doubles their size: three blocks at 32 px, four at 64, five at
128. The setting `body` chooses the discriminator's layers. SNGAN's own nets at 32 px are `growth: 1, width: 256` for
the generator, and `growth: 1, width: 128, smallest: 8, flat_blocks: 2` for the discriminator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from ganherd.nets.common.bodies import Attention, DiscriminatorWithBody, attention_at, init_sngan, stages


class UpBlock(nn.Module):
    """A residual block of a generator that doubles height and width of the maps.

    Its convolutions have no bias, because the next batch norm would cancel it. `norm` creates a norm for a number of
    channels.
    """

    def __init__(self, n_in: int, n_out: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm1, self.norm2, self.act1, self.act2 = norm(n_in), norm(n_out), nn.ReLU(), nn.ReLU()
        self.up1, self.up2 = nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.skip = nn.Identity() if n_in == n_out else nn.Conv2d(n_in, n_out, 1, bias=False)

    def forward(self, x: Tensor, *y: Tensor) -> Tensor:
        """Return maps [B, n_out, 2H, 2W] from maps [B, n_in, H, W]; labels y [B], if given, are passed to the norms."""
        h = self.conv1(self.up1(self.act1(self.norm1(x, *y))))
        h = self.conv2(self.act2(self.norm2(h, *y)))
        out: Tensor = h + self.up2(self.skip(x))  # a 1x1 convolution commutes with upsampling, and is cheaper before it
        return out


class Up(nn.Module):
    """Base class of residual generators, from noise to an image in [-1, 1]; `norm` creates the norms of its blocks."""

    def __init__(
        self,
        shape: tuple[int, ...],
        latent: int,
        norm: Callable[[int], nn.Module],
        *,
        width: int = 64,
        attention: bool = False,
        growth: int = 8,
    ) -> None:
        super().__init__()
        self.size, channels = shape[1:], stages(shape, width, growth)[::-1]
        step = 2 ** (len(channels) - 1)
        self.begin = (channels[0], math.ceil(self.size[0] / step), math.ceil(self.size[1] / step))
        self.first = nn.Linear(latent, math.prod(self.begin))
        self.blocks = nn.ModuleList(UpBlock(n_in, n_out, norm) for n_in, n_out in pairwise(channels))
        self.after = len(self.blocks) - attention_at(shape)
        self.attention = Attention(channels[self.after]) if attention else nn.Identity()
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, shape[0], 3, padding=1), nn.Tanh())
        init_sngan(self)

    def image(self, z: Tensor, *y: Tensor) -> Tensor:
        """Return images [B, C, H, W] for noise z [B, Z]; labels y [B] are given if the norms take labels."""
        x = self.first(z).reshape(z.shape[0], *self.begin)  # [B, C, 4, 4]
        for i, block in enumerate(self.blocks):
            x = block(self.attention(x) if i == self.after else x, *y)
        out: Tensor = self.last(x)
        return out[:, :, : self.size[0], : self.size[1]]  # [B, C, H, W]


class ResidualGenerator(Up):
    """The residual generator with plain batch norm."""

    def __init__(self, shape: tuple[int, ...], latent: int, **settings: Any) -> None:
        super().__init__(shape, latent, nn.BatchNorm2d, **settings)

    def forward(self, z: Tensor) -> Tensor:
        return self.image(z)


class ResidualDiscriminator(DiscriminatorWithBody):
    """The residual discriminator: one logit per image."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))  # [B, 1]
        return logits.squeeze(1)  # [B]
