"""The generator and discriminator of W-CGAN's Tables 1 and 2, sized by the image.

The tables as printed do not fit each other: Table 1 is for 32 px, and the 2048 features of Table 2 are those of
64 px. Here both follow the image: 128 * ceil(H/4) * ceil(W/4) features open the generator (8192 at 32 px) and
128 * ceil(H/16) * ceil(W/16) close the discriminator (512 at 32 px, 2048 at 64 px).
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from ganherd.nets.common.blocks import init_dcgan, leaky


class WcganGenerator(nn.Module):
    """The generator of W-CGAN's Table 1: nearest-neighbour upsampling and 3x3 convolutions."""

    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 128, eps: float = 0.8) -> None:
        super().__init__()
        channels, *self.size = shape
        half = max(1, width // 2)
        start = (width, math.ceil(self.size[0] / 4), math.ceil(self.size[1] / 4))
        self.layers = nn.Sequential(
            nn.Linear(latent, math.prod(start)),
            leaky(),
            nn.Unflatten(1, start),
            nn.BatchNorm2d(width, eps=1e-5),  # printed as 1e-5, unlike the others
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width, eps=eps),
            leaky(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, half, 3, padding=1),
            nn.BatchNorm2d(half, eps=eps),
            leaky(),
            nn.Conv2d(half, channels, 3, padding=1),
            nn.Tanh(),
        )
        init_dcgan(self)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z)  # [B, C, 4 * ceil(H/4), 4 * ceil(W/4)]
        return x[:, :, : self.size[0], : self.size[1]]  # [B, C, H, W]


class WcganDiscriminator(nn.Module):
    """The discriminator of W-CGAN's Table 2: four convolutions of stride 2 with dropout."""

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 16,
        eps: float = 0.8,
        dropout: float = 0.25,
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        layers: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(pairwise((channels, width, 2 * width, 4 * width, 8 * width))):
            # the order is the table's: batch norm comes last, and not after the first convolution
            layers += [nn.Conv2d(n_in, n_out, 3, stride=2, padding=1), leaky(), nn.Dropout(dropout)]
            if batch_norm and i > 0:
                layers.append(nn.BatchNorm2d(n_out, eps=eps))
        features = 8 * width * math.ceil(height / 16) * math.ceil(breadth / 16)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 1))
        init_dcgan(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)  # [B, 1]
        return logits.squeeze(1)  # [B]
