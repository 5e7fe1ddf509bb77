"""Bodies of discriminators: the layers from an image to features [B, `features`], before the last layer (head).

The maps shrink from the image's size to about 4 px, halved at each stage, while the number of channels doubles from
`width` up to `growth` times `width`. With `growth: 8` every stage costs about the same; with 1 all maps have the same
number of channels, as in SNGAN and BigGAN at 32 px.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ganherd.nets.common.blocks import leaky
from ganherd.nets.common.spectral import SpectralConv2d, SpectralLinear
from ganherd.util.errors import UserError

Conv = type[nn.Conv2d]


def stages(shape: tuple[int, ...], width: int, growth: int = 8, smallest: int = 4) -> list[int]:
    """Return the number of channels at each size of the maps, from that of the image to `smallest` px or less.

    Args:
        shape: The shape of an image (C, H, W).
        width: The number of channels at the size of the image.
        growth: The largest multiple of `width`.
        smallest: The size at which halving stops; maps are halved at least once.

    >>> stages((3, 32, 32), 64), stages((3, 128, 128), 64), stages((3, 32, 32), 128, growth=1, smallest=8)
    ([64, 128, 256, 512], [64, 128, 256, 512, 512, 512], [128, 128, 128])
    """
    halvings = 1
    while max(shape[1:]) > smallest << halvings:
        halvings += 1
    return [width * min(2**i, growth) for i in range(halvings + 1)]


def attention_at(shape: tuple[int, ...]) -> int:
    """Return how often the maps are halved before self-attention: once, or more until they are at most 32 px.

    >>> [attention_at((3, side, side)) for side in (32, 64, 128)]
    [1, 1, 2]
    """
    return max(1, (max(shape[1:]) - 1).bit_length() - 5)


def init_sngan(module: nn.Module) -> None:
    """Initialise as in SNGAN: weights by Glorot, with gain √2 for all convolutions but 1x1, and biases with 0."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            inner = isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)
            nn.init.xavier_uniform_(layer.weight, math.sqrt(2.0) if inner else 1.0)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class Attention(nn.Module):
    """Self-attention on maps, as in SAGAN: x + gamma * attention(x), where gamma is learnt and starts at 0.

    Keys and values are max-pooled by 2 in height and width, to save time and memory.
    """

    def __init__(self, channels: int, conv: Conv = nn.Conv2d) -> None:
        super().__init__()
        inner, half = max(1, channels // 8), max(1, channels // 2)
        self.query = conv(channels, inner, 1, bias=False)
        self.key = conv(channels, inner, 1, bias=False)
        self.value = conv(channels, half, 1, bias=False)
        self.out = conv(half, channels, 1, bias=False)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, breadth = x.shape
        query = self.query(x).flatten(2)  # [B, c/8, HW]
        key = self.pool(self.key(x)).flatten(2)  # [B, c/8, HW/4]
        value = self.pool(self.value(x)).flatten(2)  # [B, c/2, HW/4]
        attention = torch.softmax(torch.bmm(query.transpose(1, 2), key), dim=2)  # [B, HW, HW/4]
        taken = torch.bmm(value, attention.transpose(1, 2))  # [B, c/2, HW]
        mixed: Tensor = self.out(taken.reshape(batch, -1, height, breadth))
        return x + self.gamma * mixed


@dataclass(frozen=True)
class BodySize:
    """The sizes of a discriminator's body."""

    width: int  # channels at the size of the image
    growth: int  # largest multiple of width
    smallest: int  # maps are halved until no side is longer than this
    flat_blocks: int  # further blocks that keep the size of the last maps

    def channels(self, shape: tuple[int, ...]) -> list[int]:
        """Return the number of channels of the maps at each size, for images of this shape."""
        return stages(shape, self.width, self.growth, self.smallest)


class DownBlock(nn.Module):
    """A residual block that halves the maps or keeps their size.

    It has no batch norm, so the logit of an image does not depend on other images of the batch.
    """

    def __init__(self, n_in: int, n_out: int, conv: Conv, halve: bool = True) -> None:
        super().__init__()
        self.act1, self.act2 = leaky(), leaky()
        self.conv1 = conv(n_in, n_in, 3, padding=1)
        self.conv2 = conv(n_in, n_out, 3, padding=1)
        self.pool1, self.pool2 = (nn.AvgPool2d(2, ceil_mode=True) if halve else nn.Identity() for _ in range(2))
        self.skip = nn.Identity() if n_in == n_out else conv(n_in, n_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool1(self.conv2(self.act2(self.conv1(self.act1(x)))))
        out: Tensor = h + self.skip(self.pool2(x))
        return out


class ResidualBody(nn.Module):
    """Residual blocks as in SNGAN: those that halve the maps, then `flat_blocks` that do not.

    The features [B, channels] are the sums of the last maps over height and width.
    """

    def __init__(self, shape: tuple[int, ...], size: BodySize, attention: bool, spectral: bool) -> None:
        super().__init__()
        conv, channels = SpectralConv2d if spectral else nn.Conv2d, size.channels(shape)
        self.first = conv(shape[0], size.width, 3, padding=1)
        self.blocks = nn.ModuleList(DownBlock(n_in, n_out, conv) for n_in, n_out in pairwise(channels))
        self.blocks.extend(DownBlock(channels[-1], channels[-1], conv, halve=False) for _ in range(size.flat_blocks))
        self.before = min(attention_at(shape), len(channels) - 1)
        self.attention = Attention(channels[self.before], conv) if attention else nn.Identity()
        self.act = leaky()
        self.features = channels[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            x = self.attention(block(x)) if i + 1 == self.before else block(x)
        result: Tensor = self.act(x).sum((2, 3))  # [B, features]
        return result


class PlainBody(nn.Module):
    """Convolutions as in SNGAN's net without residual blocks: at each size a 3x3, then a 4x4 that halves the maps.

    The features are all numbers of the last maps [B, channels · height · width]. It costs half as much as
    `ResidualBody`.
    """

    def __init__(self, shape: tuple[int, ...], size: BodySize, attention: bool, spectral: bool) -> None:
        super().__init__()
        conv, channels = SpectralConv2d if spectral else nn.Conv2d, size.channels(shape)
        halvings = len(channels) - 1
        if min(shape[1:]) < 2**halvings:
            raise UserError(
                f"a discriminator with body plain halves these images {halvings} times, so no side may be below "
                f"{2**halvings} px, and one has {min(shape[1:])}: take body residual."
            )
        layers: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(pairwise([shape[0], *channels])):
            layers += [conv(n_in, n_out, 3, padding=1), leaky()]
            if i < halvings:
                layers += [conv(n_out, n_out, 4, 2, 1), leaky()]
            if attention and i + 1 == min(attention_at(shape), halvings):
                layers.append(Attention(n_out, conv))
        for _ in range(size.flat_blocks):
            layers += [conv(channels[-1], channels[-1], 3, padding=1), leaky()]
        self.layers = nn.Sequential(*layers)
        self.features = channels[-1] * math.prod(side >> halvings for side in shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out.flatten(1)  # [B, features]


BODIES: dict[str, Callable[[tuple[int, ...], BodySize, bool, bool], ResidualBody | PlainBody]] = {
    "residual": ResidualBody,
    "plain": PlainBody,
}


class DiscriminatorWithBody(nn.Module):
    """Base class of discriminators: a body that computes features, and a head that computes a logit from them."""

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 64,
        attention: bool = False,
        spectral: bool = True,
        body: str = "residual",
        growth: int = 8,
        smallest: int = 4,
        flat_blocks: int = 0,
    ) -> None:
        super().__init__()
        size = BodySize(width, growth, smallest, flat_blocks)
        self.body, self.spectral = BODIES[body](shape, size, attention, spectral), spectral
        self.head = self.output_layer(1)
        init_sngan(self)

    def output_layer(self, numbers: int) -> nn.Linear:
        """Return a new linear layer from the features to this many numbers, with spectral norm if the net uses it."""
        return (SpectralLinear if self.spectral else nn.Linear)(self.body.features, numbers)
