"""More well-known GANs in plain PyTorch: StyleGAN2, R3GAN, a U-Net discriminator and FastGAN; see `public_nets`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm

from ganherd_benchmarks.public_nets import SMALL, Shape, SnganGenerator, doublings, init_normal

# -- StyleGAN2 (Karras et al., 2020) ----------------------------------------------------------------------------------


class EqualLinear(nn.Module):
    """A linear layer whose weight is scaled when it runs."""

    def __init__(self, inputs: int, outputs: int, bias: float = 0.0, activation: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.full((outputs,), bias))
        self.scale, self.activation = 1 / math.sqrt(inputs), activation

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight * self.scale, bias=self.bias)
        return F.leaky_relu(out, 0.2) * 2**0.5 if self.activation else out


class EqualConv2d(nn.Module):
    """A convolution whose weight is scaled when it runs."""

    def __init__(self, inputs: int, outputs: int, size: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, size, size))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.scale, self.padding = 1 / math.sqrt(inputs * size**2), size // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.scale, bias=self.bias, padding=self.padding)


class ModulatedConv2d(nn.Module):
    """A convolution with a weight for each sample, modulated by its style; samples run as groups."""

    def __init__(self, inputs: int, outputs: int, size: int, style: int, demodulate: bool = True) -> None:
        super().__init__()
        self.inputs, self.outputs, self.size, self.demodulate = inputs, outputs, size, demodulate
        self.weight = nn.Parameter(torch.randn(1, outputs, inputs, size, size))
        self.modulation = EqualLinear(style, inputs, bias=1.0)
        self.scale = 1 / math.sqrt(inputs * size**2)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        modulation = self.modulation(style).view(batch, 1, channels, 1, 1)
        weight = self.scale * self.weight * modulation
        if self.demodulate:
            demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8)
            weight = weight * demod.view(batch, self.outputs, 1, 1, 1)
        weight = weight.view(batch * self.outputs, channels, self.size, self.size)
        x = x.view(1, batch * channels, height, width)
        out = F.conv2d(x, weight, padding=self.size // 2, groups=batch)
        return out.view(batch, self.outputs, height, width)


class StyledLayer(nn.Module):
    """A modulated convolution with noise, a bias and an activation, after an upsampling if `up`."""

    def __init__(self, inputs: int, outputs: int, style: int, up: bool) -> None:
        super().__init__()
        self.conv, self.up = ModulatedConv2d(inputs, outputs, 3, style), up
        self.noise, self.bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, outputs, 1, 1))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        out = self.conv(x, style)
        batch, _, height, width = out.shape
        out = out + self.noise * torch.randn(batch, 1, height, width, device=out.device)
        return F.leaky_relu(out + self.bias, 0.2) * math.sqrt(2)


class StyleGan2Generator(nn.Module):
    """A mapping network, styled layers from a constant, and images that are added up from scale to scale."""

    def __init__(self, shape: Shape, latent: int, width: int = 128) -> None:
        super().__init__()
        self.mapping = nn.Sequential(*(EqualLinear(latent, latent, activation=True) for _ in range(4)))
        self.constant = nn.Parameter(torch.randn(1, width, SMALL, SMALL))
        self.first = StyledLayer(width, width, latent, up=False)
        scales = range(doublings(shape))
        self.ups = nn.ModuleList([StyledLayer(width, width, latent, up=True) for _ in scales])
        self.convs = nn.ModuleList([StyledLayer(width, width, latent, up=False) for _ in scales])
        self.image = ModulatedConv2d(width, shape[0], 1, latent, False)
        self.images = nn.ModuleList([ModulatedConv2d(width, shape[0], 1, latent, False) for _ in scales])

    def forward(self, z: Tensor) -> Any:
        z = z * torch.rsqrt(torch.mean(z**2, dim=1, keepdim=True) + 1e-8)
        style = self.mapping(z)
        h = self.first(self.constant.repeat(z.shape[0], 1, 1, 1), style)
        image = self.image(h, style)
        for up, conv, to_image in zip(self.ups, self.convs, self.images, strict=True):
            h = conv(up(h, style), style)
            image = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False) + to_image(h, style)
        return image


class StyleGan2Block(nn.Module):
    """A residual block that halves the side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c1, self.c2 = EqualConv2d(width, width, 3), EqualConv2d(width, width, 3)
        self.skip = EqualConv2d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Any:
        out = F.leaky_relu(self.c1(x), 0.2) * math.sqrt(2)
        out = F.avg_pool2d(F.leaky_relu(self.c2(out), 0.2) * math.sqrt(2), 2)
        return (out + self.skip(F.avg_pool2d(x, 2))) / math.sqrt(2)


class StyleGan2Discriminator(nn.Module):
    """Residual blocks, and the deviation within groups of samples as one more channel."""

    def __init__(self, shape: Shape, width: int = 128, group: int = 4) -> None:
        super().__init__()
        self.start = EqualConv2d(shape[0], width, 1)
        self.blocks = nn.Sequential(*(StyleGan2Block(width) for _ in range(doublings(shape))))
        self.conv, self.group = EqualConv2d(width + 1, width, 3), group
        self.linear = nn.Sequential(EqualLinear(width * SMALL**2, width, activation=True), EqualLinear(width, 1))

    def forward(self, x: Tensor) -> Any:
        out = self.blocks(F.leaky_relu(self.start(x), 0.2))
        batch, channels, height, width = out.shape
        group = min(batch, self.group)
        deviation = out.view(group, -1, 1, channels, height, width)
        deviation = torch.sqrt(deviation.var(0, unbiased=False) + 1e-8)
        deviation = deviation.mean([2, 3, 4], keepdim=True).squeeze(2)
        deviation = deviation.repeat(group, 1, height, width)
        out = F.leaky_relu(self.conv(torch.cat([out, deviation], 1)), 0.2)
        return self.linear(out.view(batch, -1))


# -- R3GAN (Huang et al., 2024) ---------------------------------------------------------------------------------------


class R3GanBlock(nn.Module):
    """A residual block without norms: 1×1, 3×3 in groups, 1×1."""

    def __init__(self, width: int, groups: int, expansion: int = 2) -> None:
        super().__init__()
        inner = width * expansion
        self.linear1 = nn.Conv2d(width, inner, 1, bias=False)
        self.linear2 = nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False)
        self.linear3 = nn.Conv2d(inner, width, 1, bias=False)
        self.bias1, self.bias2 = nn.Parameter(torch.zeros(inner)), nn.Parameter(torch.zeros(inner))
        for layer in (self.linear1, self.linear2):
            nn.init.kaiming_normal_(layer.weight, a=0.2)
        nn.init.normal_(self.linear3.weight, std=1e-2)

    def forward(self, x: Tensor) -> Any:
        y = F.leaky_relu(self.linear1(x) + self.bias1.view(1, -1, 1, 1), 0.2)
        y = F.leaky_relu(self.linear2(y) + self.bias2.view(1, -1, 1, 1), 0.2)
        return x + self.linear3(y)


class R3GanGenerator(nn.Module):
    """A learned basis, and stages of residual blocks with bilinear resizing between them."""

    def __init__(self, shape: Shape, latent: int, width: int = 128, groups: int = 8) -> None:
        super().__init__()
        self.basis = nn.Parameter(torch.randn(width, SMALL, SMALL))
        self.linear = nn.Linear(latent, width, bias=False)
        self.stages = nn.ModuleList(
            [nn.Sequential(R3GanBlock(width, groups), R3GanBlock(width, groups)) for _ in range(doublings(shape) + 1)]
        )
        self.image = nn.Conv2d(width, shape[0], 1)

    def forward(self, z: Tensor) -> Any:
        x = self.basis.view(1, -1, SMALL, SMALL) * self.linear(z).view(z.shape[0], -1, 1, 1)
        for number, stage in enumerate(self.stages):
            if number:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = stage(x)
        return self.image(x)


class R3GanDiscriminator(nn.Module):
    """The generator's stages in reverse."""

    def __init__(self, shape: Shape, width: int = 128, groups: int = 8) -> None:
        super().__init__()
        self.start = nn.Conv2d(shape[0], width, 1)
        self.stages = nn.ModuleList(
            [nn.Sequential(R3GanBlock(width, groups), R3GanBlock(width, groups)) for _ in range(doublings(shape) + 1)]
        )
        self.basis = nn.Conv2d(width, width, SMALL, groups=width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Any:
        x = self.start(x)
        for number, stage in enumerate(self.stages):
            if number:
                x = F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)
            x = stage(x)
        return self.score(self.basis(x).flatten(1)).view(x.shape[0])


# -- a U-Net discriminator (Schönfeld et al., 2020), with SNGAN's generator -------------------------------------------


class UNetGenerator(SnganGenerator):
    """SNGAN's generator under another name."""


class UNetDiscriminator(nn.Module):
    """An encoder that judges the image, and a decoder with skip connections that judges every place."""

    def __init__(self, shape: Shape, width: int = 64) -> None:
        super().__init__()
        count = doublings(shape)
        widths = [width * 2 ** min(i, 3) for i in range(count + 1)]
        self.start = nn.Conv2d(shape[0], width, 3, 1, 1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList([spectral_norm(nn.Conv2d(a, b, 4, 2, 1, bias=False)) for a, b in pairs])
        self.up = nn.ModuleList([spectral_norm(nn.Conv2d(b + a, a, 3, 1, 1, bias=False)) for a, b in reversed(pairs)])
        self.place = nn.Conv2d(width, 1, 1)
        self.whole = spectral_norm(nn.Linear(widths[-1], 1))

    def forward(self, x: Tensor) -> Any:
        h = F.leaky_relu(self.start(x), 0.2, inplace=True)
        skips = []
        for layer in self.down:
            skips.append(h)
            h = F.leaky_relu(layer(h), 0.2)
        whole = self.whole(F.adaptive_avg_pool2d(h, 1).flatten(1)).squeeze(1)
        for layer, skip in zip(self.up, reversed(skips), strict=True):
            h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
            h = F.leaky_relu(layer(torch.cat([h, skip], dim=1)), 0.2)
        return whole + self.place(h).mean(dim=(1, 2, 3))


# -- FastGAN (Liu et al., 2021) ---------------------------------------------------------------------------------------


class HalfGate(nn.Module):
    """A gated linear unit over the channels."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.size(1) // 2
        return x[:, :half] * torch.sigmoid(x[:, half:])


class NoiseInjection(nn.Module):
    """Noise with a learned strength."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        noise = torch.randn(batch, 1, height, width).to(x.device)
        return x + self.weight * noise


class SkipExcitation(nn.Module):
    """Scale the channels of a large map by what a small one shows."""

    def __init__(self, small: int, large: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), spectral_norm(nn.Conv2d(small, large, 4, 1, 0, bias=False)), nn.SiLU(),
            spectral_norm(nn.Conv2d(large, large, 1, 1, 0, bias=False)), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, small: Tensor, large: Tensor) -> Any:
        return large * self.main(small)


def _fast_up(before: int, after: int) -> nn.Sequential:
    """Return a block that doubles the side, with noise and a gate."""
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode="nearest"), spectral_norm(nn.Conv2d(before, after * 2, 3, 1, 1, bias=False)),
        NoiseInjection(), nn.BatchNorm2d(after * 2), HalfGate(),
    )  # fmt: skip


class FastGanGenerator(nn.Module):
    """Gated blocks with noise, and skip excitations from small maps to large ones."""

    def __init__(self, shape: Shape, latent: int, width: int = 64) -> None:
        super().__init__()
        count = doublings(shape)
        widths = [width * 2 ** min(i, 2) for i in range(count, -1, -1)]
        self.init = nn.Sequential(
            spectral_norm(nn.ConvTranspose2d(latent, widths[0] * 2, 4, 1, 0, bias=False)),
            nn.BatchNorm2d(widths[0] * 2), HalfGate(),
        )  # fmt: skip
        self.blocks = nn.ModuleList([_fast_up(a, b) for a, b in pairwise(widths)])
        self.excitation = SkipExcitation(widths[0], widths[-1])
        self.image = spectral_norm(nn.Conv2d(widths[-1], shape[0], 3, 1, 1, bias=False))

    def forward(self, z: Tensor) -> Any:
        first = h = self.init(z.view(z.shape[0], -1, 1, 1))
        for block in self.blocks:
            h = block(h)
        return torch.tanh(self.image(self.excitation(first, h)))


class FastGanDown(nn.Module):
    """The mean of a convolutional branch and a pooled one, both of which halve the side."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            spectral_norm(nn.Conv2d(before, after, 4, 2, 1, bias=False)), nn.BatchNorm2d(after),
            nn.LeakyReLU(0.2, inplace=True), spectral_norm(nn.Conv2d(after, after, 3, 1, 1, bias=False)),
            nn.BatchNorm2d(after), nn.LeakyReLU(0.2),
        )  # fmt: skip
        self.direct = nn.Sequential(
            nn.AvgPool2d(2, 2), spectral_norm(nn.Conv2d(before, after, 1, 1, 0, bias=False)), nn.BatchNorm2d(after),
            nn.LeakyReLU(0.2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        return (self.main(x) + self.direct(x)) / 2


class FastGanDiscriminator(nn.Module):
    """Two-branched blocks, and a skip excitation from the first map to the last one."""

    def __init__(self, shape: Shape, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2 ** min(i, 2) for i in range(doublings(shape) + 1)]
        self.start = nn.Sequential(
            spectral_norm(nn.Conv2d(shape[0], width, 3, 1, 1, bias=False)), nn.LeakyReLU(0.2, inplace=True)
        )
        self.blocks = nn.ModuleList([FastGanDown(a, b) for a, b in pairwise(widths)])
        self.excitation = SkipExcitation(widths[0], widths[-1])
        self.score = nn.Sequential(
            spectral_norm(nn.Conv2d(widths[-1], widths[-1], 1, 1, 0, bias=False)), nn.BatchNorm2d(widths[-1]),
            nn.LeakyReLU(0.2), spectral_norm(nn.Conv2d(widths[-1], 1, 4, 1, 0, bias=False)),
        )  # fmt: skip
        self.apply(_init_unnormed)

    def forward(self, x: Tensor) -> Any:
        first = h = self.start(x)
        for block in self.blocks:
            h = block(h)
        return self.score(self.excitation(first, h)).view(-1)


def _init_unnormed(module: nn.Module) -> None:
    """Draw weights as DCGAN does, except those with a spectral norm."""
    if isinstance(module, nn.BatchNorm2d):
        init_normal(module)
