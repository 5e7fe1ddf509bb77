"""Residual nets of one GAN for all classes: they take the label (conditional batch norm, projection) or predict it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ganherd.nets.common.bodies import DiscriminatorWithBody, init_sngan
from ganherd.nets.common.spectral import SpectralEmbedding
from ganherd.nets.residual import Up


class ConditionalNorm(nn.Module):
    """Batch norm with a gain and a shift for each class; the label of each image chooses them."""

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
    """A residual generator whose blocks have class-conditional batch norm (Miyato and Koyama, 2018)."""

    def __init__(self, shape: tuple[int, ...], latent: int, classes: int, **settings: Any) -> None:
        super().__init__(shape, latent, lambda channels: ConditionalNorm(channels, classes), **settings)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.image(z, y)


class ConditionalDiscriminator(DiscriminatorWithBody):
    """The projection discriminator: a linear head on the features, plus their product with a class vector."""

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
    """The discriminator of AC-GAN (Odena et al., 2017): it returns logits [B] and logits of classes [B, classes]."""

    def __init__(self, shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.classify = self.output_layer(classes)
        init_sngan(self.classify)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)  # [B, features]
        return self.head(features).squeeze(1), self.classify(features)  # [B], [B, classes]
