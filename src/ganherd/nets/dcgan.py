"""DCGAN in two forms: with 4x4 kernels at 28, 32 and 64 px, and with 5x5 kernels as in its paper and in GAP's code.

`dcgan` is the form of PyTorch's example: convolutions of stride 2 and padding 1, and no fully connected layer. `dcgan5`
has a fully connected layer at the inner end, and convolutions of stride 2 between it and the image.

Data is in [-1, 1] here, so the generator ends in tanh; GAP's code scales data to [0, 1] and ends in a sigmoid. Settings
for the nets of published runs: for GAP's churches at 64 px, the generator has `width: 344, first: 172` (maps of
4x4x172, 1376, 688, 344) and the discriminator `width: 128` (128, 256, 512, 1024). For stacked MNIST (VEEGAN, PacGAN),
both have `width: 64, depth: 4`, and the discriminator `first_norm: false`: 2x2x512, 4x4x256, 7x7x128, 14x14x64 and
28x28x3, and the reverse.
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from ganherd.nets.catalog import check_shape
from ganherd.nets.common.blocks import init_dcgan, leaky

Size = tuple[int, int]
# Size of the image -> (size of the innermost feature map, how often it doubles up to the image)
_STAGES = {28: (7, 2), 32: (4, 3), 64: (4, 4)}


class DcganGenerator(nn.Module):
    """DCGAN's generator with 4x4 kernels: transposed convolutions with batch norm and ReLU, from noise to an image."""

    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 64) -> None:
        super().__init__()
        check_shape("generator", "dcgan", shape)
        start, doublings = _STAGES[shape[1]]
        n = width * 2 ** (doublings - 1)
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent, n, start, bias=False), nn.BatchNorm2d(n), nn.ReLU()]
        for _ in range(doublings - 1):
            layers += [nn.ConvTranspose2d(n, n // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(n // 2), nn.ReLU()]
            n //= 2
        layers += [nn.ConvTranspose2d(n, shape[0], 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        init_dcgan(self)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z[:, :, None, None])  # [B, C, H, W]
        return x


class DcganDiscriminator(nn.Module):
    """DCGAN's discriminator with 4x4 kernels: convolutions with LeakyReLU, and batch norm after all but the first."""

    def __init__(self, shape: tuple[int, ...], *, width: int = 64, batch_norm: bool = True) -> None:
        super().__init__()
        check_shape("discriminator", "dcgan", shape)
        end, halvings = _STAGES[shape[1]]
        layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 4, 2, 1, bias=False), leaky()]
        n = width
        for _ in range(halvings - 1):
            # without batch norm nothing else shifts the activations, so the convolution gets a bias
            layers.append(nn.Conv2d(n, 2 * n, 4, 2, 1, bias=not batch_norm))
            layers += [nn.BatchNorm2d(2 * n), leaky()] if batch_norm else [leaky()]
            n *= 2
        self.layers = nn.Sequential(*layers, nn.Conv2d(n, 1, end, bias=False), nn.Flatten())
        init_dcgan(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)  # [B, 1]
        return logits.squeeze(1)  # [B]


class Dcgan5Generator(nn.Module):
    """DCGAN's generator with 5x5 kernels: a fully connected layer, then transposed convolutions with batch norm.

    `depth` and `first` are those of `halved` and `doubled`.
    """

    def __init__(
        self, shape: tuple[int, ...], latent: int, *, width: int = 128, depth: int = 0, first: int = 0
    ) -> None:
        super().__init__()
        channels, *image = shape
        sizes = halved((image[0], image[1]), depth)[::-1]
        maps = [*doubled(width, len(sizes) - 1, first), channels]
        start = (maps[0], *sizes[0])
        n = math.prod(start)
        layers: list[nn.Module] = [
            nn.Linear(latent, n, bias=False),
            nn.BatchNorm1d(n),
            nn.ReLU(),
            nn.Unflatten(1, start),
        ]
        for i, (n_in, n_out) in enumerate(pairwise(maps)):
            last = i == len(maps) - 2
            layers.append(doubling(n_in, n_out, sizes[i], sizes[i + 1], bias=last))
            layers += [nn.Tanh()] if last else [nn.BatchNorm2d(n_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        init_dcgan(self)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z)  # [B, C, H, W]
        return x


class Dcgan5Discriminator(nn.Module):
    """DCGAN's discriminator with 5x5 kernels: convolutions with LeakyReLU, then a fully connected layer.

    DCGANs and GRANs both use it, so that their discriminators can be swapped.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 128,
        depth: int = 0,
        batch_norm: bool = True,
        first_norm: bool = True,
    ) -> None:
        super().__init__()
        channels, *image = shape
        sizes = halved((image[0], image[1]), depth)
        maps = [channels, *doubled(width, len(sizes) - 1)[::-1]]
        layers: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(pairwise(maps)):
            normed = batch_norm and (first_norm or i > 0)
            layers.append(halving(n_in, n_out, bias=not normed))  # batch norm would cancel a bias
            layers += [nn.BatchNorm2d(n_out), leaky()] if normed else [leaky()]
        features = maps[-1] * math.prod(sizes[-1])
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 1, bias=False))
        init_dcgan(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)  # [B, 1]
        return logits.squeeze(1)  # [B]


# -- shared with GRAN --------------------------------------------------------------------------------------------------


def halved(image: Size, depth: int = 0) -> list[Size]:
    """Return the heights and widths of the maps, from the image inwards; each is half of the previous one, rounded up.

    Args:
        image: The height and the width of the image.
        depth: Number of halvings; 0: until no edge is longer than 7, which is 7x7 for 28 pixels, and 4x4 for 32 and 64.

    >>> halved((28, 28)), halved((28, 28), 4)[-3:]
    ([(28, 28), (14, 14), (7, 7)], [(7, 7), (4, 4), (2, 2)])
    """
    sizes = [image]
    while len(sizes) - 1 < depth or (depth == 0 and (max(sizes[-1]) > 7 or len(sizes) == 1)):
        height, width = sizes[-1]
        sizes.append((math.ceil(height / 2), math.ceil(width / 2)))
    return sizes


def doubled(width: int, depth: int, first: int = 0) -> list[int]:
    """Return the numbers of channels of the maps, from the innermost map to the one nearest to the image.

    Args:
        width: The number of channels of the map nearest to the image.
        depth: The number of maps; each has twice as many channels as the next one.
        first: The number of channels of the innermost map; 0: also twice as many as the next one.

    >>> doubled(256, 3), doubled(344, 4, first=172)
    ([1024, 512, 256], [172, 1376, 688, 344])
    """
    maps = [width * 2**i for i in reversed(range(depth))]
    return [first or maps[0], *maps[1:]]


def doubling(n_in: int, n_out: int, small: Size, large: Size, bias: bool) -> nn.ConvTranspose2d:
    """Return a 5x5 transposed convolution of stride 2 from maps of size `small` to maps of size `large`.

    Each side of `large` must be twice that of `small`, or 1 less.
    """
    more = (large[0] - 2 * small[0] + 1, large[1] - 2 * small[1] + 1)
    return nn.ConvTranspose2d(n_in, n_out, 5, 2, 2, output_padding=more, bias=bias)


def halving(n_in: int, n_out: int, bias: bool) -> nn.Conv2d:
    """Return a 5x5 convolution of stride 2, to maps of half the size, rounded up."""
    return nn.Conv2d(n_in, n_out, 5, 2, 2, bias=bias)
