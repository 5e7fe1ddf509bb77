"""One GAN for all classes: residual nets that take the label (class-conditional batch norm, projection) or predict it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ganherd.nets.common.bodies import DiscriminatorWithBody, init_sngan
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
    """A residual generator whose norms in every block get the label (Miyato and Koyama, 2018)."""

    def __init__(self, shape: tuple[int, ...], latent: int, classes: int, **settings: Any) -> None:
        super().__init__(shape, latent, lambda channels: ConditionalNorm(channels, classes), **settings)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.image(z, y)


class ConditionalDiscriminator(DiscriminatorWithBody):
    """The projection discriminator: the logit is that of the image plus the inner product of features and class vector."""

    def __init__(self, shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.project = (SpectralEmbedding if self.spectral else nn.Embedding)(classes, self.body.features)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.body(x)  # [B, features]
        alone: Tensor = self.head(features)  # [B, 1]
        result: Tensor = alone.squeeze(1) + (self.project(y) * features).sum(1)  # [B]
        return result


class AcganDiscriminator(DiscriminatorWithBody):
    """The discriminator of AC-GAN (Odena et al., 2017): a second head on the same features predicts the class."""

    def __init__(self, shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.classify = self.output_layer(classes)
        init_sngan(self.classify)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)  # [B, features]
        return self.head(features).squeeze(1), self.classify(features)  # [B], [B, classes]
