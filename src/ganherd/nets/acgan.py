"""The discriminator of AC-GAN (Odena et al., 2017), which also predicts the class."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ganherd.nets.common.bodies import DiscriminatorWithBody, init_sngan


class AcganDiscriminator(DiscriminatorWithBody):
    """Two heads on the same features."""

    def __init__(self, shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.classify = self.output_layer(classes)
        init_sngan(self.classify)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)  # [B, features]
        return self.head(features).squeeze(1), self.classify(features)  # [B], [B, classes]
