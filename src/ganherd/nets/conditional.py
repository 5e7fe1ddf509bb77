"""One GAN for all classes: residual nets that take the label, by class-conditional batch norm and by projection."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ganherd.nets.common.bodies import DiscriminatorWithBody
from ganherd.nets.common.spectral import SpectralEmbedding
from ganherd.nets.residual import Up


class ConditionalNorm(nn.Module):
    """Batch norm whose gain and shift belong to the class of each image."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.gain, self.shift = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.gain.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        like = (x.shape[0], x.shape[1], 1, 1)
        out: Tensor = self.norm(x) * self.gain(y).reshape(like) + self.shift(y).reshape(like)
        return out


class ConditionalGenerator(Up):
    """As in cGANs with projection (Miyato and Koyama, 2018): the label goes to the norms of every block, not to the noise."""

    def __init__(
        self, shape: tuple[int, ...], latent: int, classes: int, *, width: int = 64, attention: bool = False
    ) -> None:
        super().__init__(shape, latent, width, attention, lambda channels: ConditionalNorm(channels, classes))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.image(z, y)


class ConditionalDiscriminator(DiscriminatorWithBody):
    """The projection discriminator: a logit of the image alone, plus the features' product with the vector of the class."""

    def __init__(self, shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.project = (SpectralEmbedding if self.spectral else nn.Embedding)(classes, self.body.features)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.body(x)  # [B, features]
        alone: Tensor = self.head(features)  # [B, 1]
        result: Tensor = alone.squeeze(1) + (self.project(y) * features).sum(1)  # [B]
        return result
