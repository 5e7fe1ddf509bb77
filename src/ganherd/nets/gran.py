"""GRAN's generator: it paints an image in steps on a canvas; each step gets an encoding of the previous paint.

The noise z is drawn once. With h_z = tanh(BN(W z)) and h_0 = 0, step t paints dC_t = f([h_z, h_{t-1}]), and
h_t = g(dC_t) is the input of the next step. The sample is tanh(dC_1 + … + dC_T); the authors' code, with data in
[0, 1], has a sigmoid there. All steps share the weights of the decoder f and the encoder g.

Settings for the nets of the authors' runs: MNIST `width: 128` (maps of 7x7x256, 128), CIFAR-10 `width: 256` (4x4x1024,
512, 256), churches `width: 344, first: 172` (4x4x172, 1376, 688, 344). The discriminator is that of `dcgan5`.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from ganherd.nets.common.blocks import init_dcgan
from ganherd.nets.dcgan import Size, doubled, doubling, halved, halving


class GranGenerator(nn.Module):
    """GRAN's generator: the tanh of the sum of what T steps paint, from noise [B, Z] to images [B, C, H, W]."""

    def __init__(
        self, shape: tuple[int, ...], latent: int, *, steps: int = 3, width: int = 128, first: int = 0
    ) -> None:
        super().__init__()
        channels, *image = shape
        sizes = halved((image[0], image[1]))[::-1]
        maps = [*doubled(width, len(sizes) - 1, first), channels]
        self.steps = steps
        self.noise = nn.Sequential(nn.Linear(latent, latent, bias=False), nn.BatchNorm1d(latent), nn.Tanh())
        self.paint = _Decoder(latent, maps, sizes, steps)
        if steps > 1:  # the paint of the last step is not encoded
            self.look = _Encoder(latent, maps, sizes, steps - 1)
        init_dcgan(self)

    def forward(self, z: Tensor) -> Tensor:
        h_z = self.paint.of_noise(self.noise(z))  # [B, C * h * w], the same at each step
        canvas = paint = self.paint(h_z, 0)  # [B, C, H, W]
        for t in range(1, self.steps):
            paint = self.paint(h_z + self.paint.of_canvas(self.look(paint, t - 1)), t)
            canvas = canvas + paint
        return torch.tanh(canvas)


class _Decoder(nn.Module):
    """The decoder f: a fully connected layer with batch norm and ReLU, then transposed convolutions without batch norm.

    The layer's weight is stored as two matrices, one for h_z and one for h_{t-1}, so that the product with h_z, which
    is the same at every step, is computed once. The caller adds the two products; `forward` gets their sum h.
    """

    def __init__(self, latent: int, maps: list[int], sizes: list[Size], steps: int) -> None:
        super().__init__()
        start = (maps[0], *sizes[0])
        n = math.prod(start)
        self.of_noise = nn.Linear(latent, n, bias=False)
        if steps > 1:
            self.of_canvas = nn.Linear(latent, n, bias=False)
        self.norm = StepNorm(nn.BatchNorm1d, n, steps)
        layers: list[nn.Module] = [nn.ReLU(), nn.Unflatten(1, start)]
        for i, (n_in, n_out) in enumerate(pairwise(maps)):
            layers += [doubling(n_in, n_out, sizes[i], sizes[i + 1], bias=True), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])  # the last one is linear

    def forward(self, h: Tensor, t: int) -> Tensor:
        paint: Tensor = self.layers(self.norm(h, t))  # [B, C, H, W], linear
        return paint


class _Encoder(nn.Module):
    """The encoder g: the decoder's convolutions in reverse, then a fully connected layer with tanh.

    All layers but the deepest convolution have batch norm.
    """

    def __init__(self, latent: int, maps: list[int], sizes: list[Size], steps: int) -> None:
        super().__init__()
        inwards = list(pairwise(reversed(maps)))
        self.convs = nn.ModuleList(halving(n_in, n_out, bias=False) for n_in, n_out in inwards[:-1])
        self.norms = nn.ModuleList(StepNorm(nn.BatchNorm2d, n_out, steps) for _, n_out in inwards[:-1])
        self.deepest = halving(*inwards[-1], bias=True)
        self.out = nn.Linear(maps[0] * math.prod(sizes[0]), latent, bias=False)
        self.out_norm = StepNorm(nn.BatchNorm1d, latent, steps)
        self.rectify, self.flatten = nn.ReLU(), nn.Flatten()  # modules, so that they can be fused with other layers

    def forward(self, x: Tensor, t: int) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.rectify(norm(conv(x), t))
        x = self.rectify(self.deepest(x))  # [B, C, h, w]
        return torch.tanh(self.out_norm(self.out(self.flatten(x)), t))  # [B, latent]


class StepNorm(nn.Module):
    """Batch norm with one gain and shift for all steps, and running statistics for each step.

    Activations differ from step to step, so their running statistics must not be averaged over the steps. The authors' code
    has batch statistics only.
    """

    def __init__(self, kind: type[nn.BatchNorm1d | nn.BatchNorm2d], features: int, steps: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(kind(features) for _ in range(steps))
        first = self.norms[0]
        for other in self.norms:
            other.weight, other.bias = first.weight, first.bias

    def forward(self, x: Tensor, t: int) -> Tensor:
        out: Tensor = self.norms[t](x)
        return out
