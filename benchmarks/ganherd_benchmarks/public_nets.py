"""Well-known GANs as people write them in plain PyTorch: DCGAN, SNGAN, SAGAN and BigGAN.

Images are square, their side a power of 2. Every net is written for one GAN, from the papers; nothing in it knows about ganherd.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm

Shape = tuple[int, int, int]
SMALL = 4  # the side of the first and the last feature maps


def doublings(shape: Shape) -> int:
    """Return how often a map of 4×4 has to be doubled to reach the image.

    >>> doublings((3, 32, 32))
    3
    """
    return int(math.log2(shape[1] // SMALL))


def init_normal(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02), as DCGAN's paper does."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


# -- DCGAN (Radford et al., 2016) -------------------------------------------------------------------------------------


class DcganGenerator(nn.Module):
    """Transposed convolutions with batch norms."""

    def __init__(self, shape: Shape, latent: int, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(doublings(shape) - 1, -1, -1)]
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent, widths[0], 4, 1, 0, bias=False)]
        layers += [nn.BatchNorm2d(widths[0]), nn.ReLU(True)]
        for before, after in pairwise(widths):
            layers += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], shape[0], 4, 2, 1, bias=False), nn.Tanh())
        self.apply(init_normal)

    def forward(self, z: Tensor) -> Any:
        return self.main(z.view(z.size(0), -1, 1, 1))


class DcganDiscriminator(nn.Module):
    """Strided convolutions with batch norms."""

    def __init__(self, shape: Shape, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(doublings(shape))]
        layers: list[nn.Module] = [nn.Conv2d(shape[0], widths[0], 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.LeakyReLU(0.2, inplace=True)]
        self.main = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, 1, 0, bias=False))
        self.apply(init_normal)

    def forward(self, x: Tensor) -> Any:
        return self.main(x).view(-1, 1).squeeze(1)


# -- SNGAN (Miyato et al., 2018) --------------------------------------------------------------------------------------


class SnganUpBlock(nn.Module):
    """A residual block that doubles the side."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.b1, self.b2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.c1, self.c2 = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.shortcut = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor) -> Any:
        h = self.c1(F.interpolate(F.relu(self.b1(x)), scale_factor=2))
        h = self.c2(F.relu(self.b2(h)))
        return h + self.shortcut(F.interpolate(x, scale_factor=2))


class SnganGenerator(nn.Module):
    """Residual blocks of one width."""

    def __init__(self, shape: Shape, latent: int, width: int = 256) -> None:
        super().__init__()
        self.width = width
        self.start = nn.Linear(latent, width * SMALL**2)
        self.blocks = nn.ModuleList([SnganUpBlock(width, width) for _ in range(doublings(shape))])
        self.norm, self.image = nn.BatchNorm2d(width), nn.Conv2d(width, shape[0], 3, 1, 1)

    def forward(self, z: Tensor) -> Any:
        h = self.start(z).view(-1, self.width, SMALL, SMALL)
        for block in self.blocks:
            h = block(h)
        return torch.tanh(self.image(F.relu(self.norm(h))))


class SnganDownBlock(nn.Module):
    """A residual block with spectral norms, which may halve the side."""

    def __init__(self, before: int, after: int, halves: bool, first: bool = False) -> None:
        super().__init__()
        self.c1 = spectral_norm(nn.Conv2d(before, after, 3, 1, 1))
        self.c2 = spectral_norm(nn.Conv2d(after, after, 3, 1, 1))
        self.shortcut = spectral_norm(nn.Conv2d(before, after, 1)) if halves or before != after else None
        self.halves, self.first = halves, first

    def forward(self, x: Tensor) -> Any:
        h = self.c2(F.relu(self.c1(x if self.first else F.relu(x))))
        skip = self.shortcut(x) if self.shortcut is not None else x
        if self.halves:
            h, skip = F.avg_pool2d(h, 2), F.avg_pool2d(skip, 2)
        return h + skip


class SnganDiscriminator(nn.Module):
    """Residual blocks with spectral norms, and a sum over all places."""

    def __init__(self, shape: Shape, width: int = 128) -> None:
        super().__init__()
        blocks = [SnganDownBlock(shape[0], width, True, first=True), SnganDownBlock(width, width, True)]
        blocks += [SnganDownBlock(width, width, False) for _ in range(2)]
        self.blocks = nn.Sequential(*blocks)
        self.score = spectral_norm(nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.blocks(x)).sum(dim=(2, 3))
        return self.score(h)


# -- SAGAN (Zhang et al., 2019) ---------------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Attention between the places of an image, added with a learned weight that starts at 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = spectral_norm(nn.Conv2d(channels, max(channels // 8, 1), 1))
        self.key = spectral_norm(nn.Conv2d(channels, max(channels // 8, 1), 1))
        self.value = spectral_norm(nn.Conv2d(channels, channels, 1))
        self.gamma = nn.Parameter(torch.zeros(1))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Any:
        b, c, width, height = x.size()
        query = self.query(x).view(b, -1, width * height).permute(0, 2, 1)
        key = self.key(x).view(b, -1, width * height)
        attention = self.softmax(torch.bmm(query, key))
        value = self.value(x).view(b, -1, width * height)
        out = torch.bmm(value, attention.permute(0, 2, 1)).view(b, c, width, height)
        return self.gamma * out + x


class SaganGenerator(nn.Module):
    """Transposed convolutions with spectral and batch norms, and attention before the last doubling."""

    def __init__(self, shape: Shape, latent: int, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(doublings(shape) - 1, -1, -1)]
        layers: list[nn.Module] = [spectral_norm(nn.ConvTranspose2d(latent, widths[0], 4))]
        layers += [nn.BatchNorm2d(widths[0]), nn.ReLU()]
        for before, after in pairwise(widths):
            layers += [spectral_norm(nn.ConvTranspose2d(before, after, 4, 2, 1)), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.attention = SelfAttention(widths[-1])
        self.last = nn.ConvTranspose2d(widths[-1], shape[0], 4, 2, 1)

    def forward(self, z: Tensor) -> Any:
        h = self.layers(z.view(z.size(0), z.size(1), 1, 1))
        return torch.tanh(self.last(self.attention(h)))


class SaganDiscriminator(nn.Module):
    """Strided convolutions with spectral norms, and attention after the second one."""

    def __init__(self, shape: Shape, width: int = 64) -> None:
        super().__init__()
        widths = [shape[0], *(width * 2**i for i in range(doublings(shape)))]
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise(widths)):
            layers += [spectral_norm(nn.Conv2d(before, after, 4, 2, 1)), nn.LeakyReLU(0.1)]
            layers += [SelfAttention(after)] if number == min(1, doublings(shape) - 1) else []
        self.layers, self.last = nn.Sequential(*layers), nn.Conv2d(widths[-1], 1, 4)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.layers(x)).squeeze()


# -- BigGAN without labels (Brock et al., 2019) -----------------------------------------------------------------------


class LatentNorm(nn.Module):
    """A batch norm whose gain and bias are computed from a part of the noise."""

    def __init__(self, channels: int, latent: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.gain = spectral_norm(nn.Linear(latent, channels, bias=False))
        self.bias = spectral_norm(nn.Linear(latent, channels, bias=False))

    def forward(self, x: Tensor, z: Tensor) -> Any:
        gain = (1 + self.gain(z)).view(z.size(0), -1, 1, 1)
        return self.norm(x) * gain + self.bias(z).view(z.size(0), -1, 1, 1)


class BigganBlock(nn.Module):
    """A residual block that doubles the side, with norms that a part of the noise steers."""

    def __init__(self, before: int, after: int, latent: int) -> None:
        super().__init__()
        self.n1, self.n2 = LatentNorm(before, latent), LatentNorm(after, latent)
        self.c1 = spectral_norm(nn.Conv2d(before, after, 3, padding=1))
        self.c2 = spectral_norm(nn.Conv2d(after, after, 3, padding=1))
        self.skip = spectral_norm(nn.Conv2d(before, after, 1))
        self.activation, self.up = nn.ReLU(inplace=False), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor, z: Tensor) -> Any:
        h = self.c1(self.up(self.activation(self.n1(x, z))))
        h = self.c2(self.activation(self.n2(h, z)))
        return h + self.skip(self.up(x))


class PooledAttention(nn.Module):
    """BigGAN's attention: keys and values are pooled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.inner = max(channels // 8, 1), max(channels // 2, 1)
        self.theta = spectral_norm(nn.Conv2d(channels, self.channels, 1, bias=False))
        self.phi = spectral_norm(nn.Conv2d(channels, self.channels, 1, bias=False))
        self.g = spectral_norm(nn.Conv2d(channels, self.inner, 1, bias=False))
        self.o = spectral_norm(nn.Conv2d(self.inner, channels, 1, bias=False))
        self.gamma = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Any:
        places = x.shape[2] * x.shape[3]
        theta = self.theta(x).view(-1, self.channels, places)
        phi = F.max_pool2d(self.phi(x), [2, 2]).view(-1, self.channels, places // 4)
        g = F.max_pool2d(self.g(x), [2, 2]).view(-1, self.inner, places // 4)
        beta = F.softmax(torch.bmm(theta.transpose(1, 2), phi), -1)
        o = self.o(torch.bmm(g, beta.transpose(1, 2)).view(-1, self.inner, x.shape[2], x.shape[3]))
        return self.gamma * o + x


class BigganGenerator(nn.Module):
    """Residual blocks, each with its own chunk of the noise; attention before the last one."""

    def __init__(self, shape: Shape, latent: int, width: int = 64) -> None:
        super().__init__()
        count = doublings(shape)
        chunk = latent // (count + 1)
        self.sizes = [latent - count * chunk] + [chunk] * count
        self.width = width * 2 ** (count - 1)
        self.linear = spectral_norm(nn.Linear(self.sizes[0], self.width * SMALL**2))
        widths = [self.width, *(width * 2**i for i in range(count - 1, -1, -1))]
        self.blocks = nn.ModuleList([BigganBlock(before, after, chunk) for before, after in pairwise(widths)])
        self.attention = PooledAttention(widths[-2])
        self.out = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), spectral_norm(nn.Conv2d(width, shape[0], 3, padding=1))
        )
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(layer.get_parameter("weight_orig"))

    def forward(self, z: Tensor) -> Any:
        chunks = torch.split(z, self.sizes, 1)
        h = self.linear(chunks[0]).view(-1, self.width, SMALL, SMALL)
        for number, block in enumerate(self.blocks):
            if number == len(self.blocks) - 1:
                h = self.attention(h)
            h = block(h, chunks[number + 1])
        return torch.tanh(self.out(h))


class BigganDiscriminator(nn.Module):
    """SNGAN's blocks with growing widths, and attention after the first one."""

    def __init__(self, shape: Shape, width: int = 64) -> None:
        super().__init__()
        widths = [shape[0], *(width * 2**i for i in range(doublings(shape)))]
        self.blocks = nn.ModuleList(
            [
                SnganDownBlock(before, after, True, first=number == 0)
                for number, (before, after) in enumerate(pairwise(widths))
            ]
        )
        self.attention, self.last = PooledAttention(widths[1]), SnganDownBlock(widths[-1], widths[-1], False)
        self.linear = spectral_norm(nn.Linear(widths[-1], 1))

    def forward(self, x: Tensor) -> Any:
        h = x
        for number, block in enumerate(self.blocks):
            h = block(h)
            if number == 0:
                h = self.attention(h)
        h = torch.sum(F.relu(self.last(h)), [2, 3])
        return self.linear(h).squeeze(1)
