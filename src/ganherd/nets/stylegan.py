"""A small StyleGAN2 (Karras et al., 2020): a mapping net, modulated convolutions, and a residual discriminator.

Weights are scaled by their fan-in, so the learning rates of StyleGAN2 fit: 2.5e-3 with betas (0, 0.99). Unlike
StyleGAN2, it adds no noise to maps, has no path-length penalty, and ends in tanh. The nets of StyleGAN2's CIFAR-10
configuration have `width: 512`, and the discriminator `minibatch_std: 32`.

The mapping net turns noise into a style w [B, style], a vector that scales the channels of every convolution
(modulation).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.nets.common.blocks import leaky
from ganherd.nets.common.bodies import stages
from ganherd.nets.common.resampling import upsample_bilinear
from ganherd.nets.common.scaled import ScaledConv2d, ScaledLinear

_MAPPING_RATE = 0.01  # factor of the mapping net's learning rate


class ModulatedConv(nn.Module):
    """A 3x3 convolution whose input channels are scaled by the style (modulation), and whose output is scaled back.

    Demodulation divides each output channel by the norm of its modulated weights, so that outputs have a variance of
    about 1 for inputs of variance 1. Scaling inputs and outputs is equal to scaling the weights for each sample, and
    cheaper.
    """

    def __init__(self, n_in: int, n_out: int, style: int, doubles: bool = False) -> None:
        super().__init__()
        self.style = ScaledLinear(style, n_in, gain=1.0)
        nn.init.ones_(self.style.bias)
        self.up = nn.Upsample(scale_factor=2) if doubles else nn.Identity()
        self.conv = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        nn.init.normal_(self.conv.weight)  # of any scale, because demodulation cancels it
        self.bias = nn.Parameter(torch.zeros(n_out, 1, 1))
        self.act = leaky()

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = self.style(w)  # [B, n_in]
        power = F.linear(style * style, self.conv.weight.square().sum((2, 3)))  # [B, n_out], squared norms of weights
        norm = torch.rsqrt(power + 1e-8) * math.sqrt(2.0)  # √2 compensates for the activation
        x = self.conv(self.up(x * style[:, :, None, None]))
        out: Tensor = self.act(x * norm.to(x.dtype)[:, :, None, None] + self.bias.to(x.dtype))
        return out


class ToImage(nn.Module):
    """A 1x1 convolution to the channels of the image, modulated by the style w but not demodulated."""

    def __init__(self, n_in: int, channels: int, style: int) -> None:
        super().__init__()
        self.style, self.conv = ScaledLinear(style, n_in, gain=1.0), ScaledConv2d(n_in, channels, 1, gain=1.0)
        nn.init.ones_(self.style.bias)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        image: Tensor = self.conv(x * self.style(w)[:, :, None, None])
        return image


class StyleganGenerator(nn.Module):
    """StyleGAN2's generator: a learnt 4x4 map, then two modulated convolutions at each size.

    At every size the maps yield an image. The sample is the tanh of the sum of these images, each upsampled to the full
    size.
    """

    def __init__(
        self, shape: tuple[int, ...], latent: int, *, width: int = 128, growth: int = 1, mapping: int = 2
    ) -> None:
        super().__init__()
        self.size, channels = shape[1:], stages(shape, width, growth)[::-1]
        style = channels[0]
        layers: list[nn.Module] = []
        for n_in in (latent, *[style] * (mapping - 1)):
            layers += [ScaledLinear(n_in, style, rate=_MAPPING_RATE), leaky()]
        self.mapping = nn.Sequential(*layers)
        step = 2 ** (len(channels) - 1)
        self.first = nn.Parameter(torch.randn(style, *(math.ceil(side / step) for side in self.size)))
        sizes = [(channels[0], channels[0]), *pairwise(channels)]
        self.ups = nn.ModuleList(
            ModulatedConv(n_in, n_out, style, doubles=i > 0) for i, (n_in, n_out) in enumerate(sizes)
        )
        self.convs = nn.ModuleList(ModulatedConv(n_out, n_out, style) for _, n_out in sizes)
        self.images = nn.ModuleList(ToImage(n_out, shape[0], style) for _, n_out in sizes)

    def forward(self, z: Tensor) -> Tensor:
        w = self.mapping(z)  # [B, style]
        x: Tensor = self.convs[0](self.ups[0](self.first, w), w)
        image: Tensor = self.images[0](x, w)
        for up, conv, to_image in zip(self.ups[1:], self.convs[1:], self.images[1:], strict=True):
            x = conv(up(x, w), w)
            image = upsample_bilinear(image) + to_image(x, w)
        return torch.tanh(image)[:, :, : self.size[0], : self.size[1]]  # [B, C, H, W]


class StyleganBlock(nn.Module):
    """A residual block of a discriminator that halves the maps."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (ScaledConv2d(n_in, n, 3, padding=1) for n in (n_in, n_out))
        self.skip = ScaledConv2d(n_in, n_out, 1, bias=False, gain=1.0)
        self.act1, self.act2 = leaky(), leaky()
        self.pool1, self.pool2 = (nn.AvgPool2d(2, ceil_mode=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.act2(self.pool1(self.conv2(self.act1(self.conv1(x)))))
        out: Tensor = (h + self.skip(self.pool2(x))) * math.sqrt(0.5)
        return out


class StyleganDiscriminator(nn.Module):
    """StyleGAN2's discriminator: residual blocks, a convolution and a hidden layer, to one or several outputs."""

    deviation_before = "end.0"  # the layer that the setting `minibatch_std` adds an input to (see `with_deviation`)

    def __init__(self, shape: tuple[int, ...], outputs: int = 1, *, width: int = 128, growth: int = 1) -> None:
        super().__init__()
        channels = stages(shape, width, growth)
        last, halvings = channels[-1], len(channels) - 1
        self.first = nn.Sequential(ScaledConv2d(shape[0], width, 1), leaky())
        self.blocks = nn.Sequential(*(StyleganBlock(n_in, n_out) for n_in, n_out in pairwise(channels)))
        features = last * math.prod(math.ceil(side / 2**halvings) for side in shape[1:])
        self.end = nn.Sequential(
            ScaledConv2d(last, last, 3, padding=1),
            leaky(),
            nn.Flatten(),
            ScaledLinear(features, last),
            leaky(),
        )
        self.head = ScaledLinear(last, outputs, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.end(self.blocks(self.first(x))))  # [B, outputs]
        return logits.squeeze(1)  # [B], or [B, outputs]
