"""Residual nets for images of any size, about 3 M parameters each at 32 px: blocks as in SNGAN, self-attention as in SAGAN.

The maps are 4 px wide at the inner end, and every block doubles (halves) them: three at 32 px, four at 64, five at 128.
Channels double inwards from `width` at the image up to eight times that, so every block costs about the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from ganherd.nets.blocks import leaky
from ganherd.nets.spectral import SpectralConv2d, SpectralLinear

Conv = type[nn.Conv2d]


def stages(shape: tuple[int, ...], width: int) -> list[int]:
    """The channels of the maps from the image's size down to about 4 px.

    >>> stages((3, 32, 32), 64), stages((3, 128, 128), 64)
    ([64, 128, 256, 512], [64, 128, 256, 512, 512, 512])
    """
    blocks = max(1, (max(shape[1:]) - 1).bit_length() - 2)
    return [width * min(2**i, 8) for i in range(blocks + 1)]


def attention_at(shape: tuple[int, ...]) -> int:
    """How many halvings lie between the image and its attention: at half its size, and at 32 px for larger ones.

    >>> [attention_at((3, side, side)) for side in (32, 64, 128)]
    [1, 1, 2]
    """
    return max(1, (max(shape[1:]) - 1).bit_length() - 5)


def start(module: nn.Module) -> None:
    """The initialisation of SNGAN: Glorot, with gain √2 for the 3x3 convolutions inside of blocks; biases 0."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            inner = isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)
            nn.init.xavier_uniform_(layer.weight, math.sqrt(2.0) if inner else 1.0)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class Attention(nn.Module):
    """x + gamma * attention(x): every place looks at all others, pooled by 2; gamma starts at 0, so it begins as nothing."""

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
        seen = torch.softmax(torch.bmm(query.transpose(1, 2), key), dim=2)  # [B, HW, HW/4]
        taken = torch.bmm(value, seen.transpose(1, 2))  # [B, c/2, HW]
        mixed: Tensor = self.out(taken.reshape(batch, -1, height, breadth))
        return x + self.gamma * mixed


class UpBlock(nn.Module):
    """Twice the size. No convolution has a bias: batch norm, at the end of every path, would take it away again."""

    def __init__(self, n_in: int, n_out: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm1, self.norm2, self.act1, self.act2 = norm(n_in), norm(n_out), nn.ReLU(), nn.ReLU()
        self.up1, self.up2 = nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.skip = nn.Identity() if n_in == n_out else nn.Conv2d(n_in, n_out, 1, bias=False)

    def forward(self, x: Tensor, *y: Tensor) -> Tensor:
        """y, where there is one, goes to the norms."""
        h = self.conv1(self.up1(self.act1(self.norm1(x, *y))))
        h = self.conv2(self.act2(self.norm2(h, *y)))
        out: Tensor = h + self.up2(self.skip(x))  # a 1x1 convolution commutes with upsampling, and is cheaper before it
        return out


class DownBlock(nn.Module):
    """Half the size, by average pooling; no batch norm, so that no image's logit depends on the others of its batch."""

    def __init__(self, n_in: int, n_out: int, conv: Conv) -> None:
        super().__init__()
        self.act1, self.act2 = leaky(), leaky()
        self.conv1 = conv(n_in, n_in, 3, padding=1)
        self.conv2 = conv(n_in, n_out, 3, padding=1)
        self.pool1, self.pool2 = (nn.AvgPool2d(2, ceil_mode=True) for _ in range(2))
        self.skip = nn.Identity() if n_in == n_out else conv(n_in, n_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool1(self.conv2(self.act2(self.conv1(self.act1(x)))))
        out: Tensor = h + self.skip(self.pool2(x))
        return out


class Up(nn.Module):
    """From noise to an image in [-1, 1], with the norms that it is given."""

    def __init__(
        self, shape: tuple[int, ...], latent: int, width: int, attention: bool, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.size, channels = shape[1:], stages(shape, width)[::-1]
        step = 2 ** (len(channels) - 1)
        self.begin = (channels[0], math.ceil(self.size[0] / step), math.ceil(self.size[1] / step))
        self.first = nn.Linear(latent, math.prod(self.begin))
        self.blocks = nn.ModuleList(UpBlock(n_in, n_out, norm) for n_in, n_out in pairwise(channels))
        self.after = len(self.blocks) - attention_at(shape)
        self.attention = Attention(channels[self.after]) if attention else nn.Identity()
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, shape[0], 3, padding=1), nn.Tanh())
        start(self)

    def image(self, z: Tensor, *y: Tensor) -> Tensor:
        x = self.first(z).reshape(z.shape[0], *self.begin)  # [B, C, 4, 4]
        for i, block in enumerate(self.blocks):
            x = block(self.attention(x) if i == self.after else x, *y)
        out: Tensor = self.last(x)
        return out[:, :, : self.size[0], : self.size[1]]  # [B, C, H, W]


class Down(nn.Module):
    """From an image to features [B, `features`], one for each channel."""

    def __init__(self, shape: tuple[int, ...], width: int, attention: bool, spectral: bool) -> None:
        super().__init__()
        conv, channels = SpectralConv2d if spectral else nn.Conv2d, stages(shape, width)
        self.first = conv(shape[0], width, 3, padding=1)
        self.blocks = nn.ModuleList(DownBlock(n_in, n_out, conv) for n_in, n_out in pairwise(channels))
        self.before = attention_at(shape)
        self.attention = Attention(channels[self.before], conv) if attention else nn.Identity()
        self.act = leaky()
        self.features = channels[-1]

    def pooled(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            x = self.attention(block(x)) if i + 1 == self.before else block(x)
        return self.act(x).sum((2, 3))  # [B, features]


class ResidualGenerator(Up):
    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 64, attention: bool = False) -> None:
        super().__init__(shape, latent, width, attention, nn.BatchNorm2d)

    def forward(self, z: Tensor) -> Tensor:
        return self.image(z)


class ResidualDiscriminator(Down):
    def __init__(
        self, shape: tuple[int, ...], *, width: int = 64, attention: bool = False, spectral: bool = True
    ) -> None:
        super().__init__(shape, width, attention, spectral)
        self.head = (SpectralLinear if spectral else nn.Linear)(self.features, 1)
        start(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pooled(x))  # [B, 1]
        return logits.squeeze(1)  # [B]
