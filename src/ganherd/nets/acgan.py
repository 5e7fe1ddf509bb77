"""AC-GAN's discriminator (Odena et al., 2017): it is not told the class but says it, beside real or made."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ganherd.nets.common.bodies import Embodied, start


class AcganDiscriminator(Embodied):
    """Two heads on the same features."""

    def __init__(self, shape: tuple[int, ...], classes: int, **settings: Any) -> None:
        super().__init__(shape, **settings)
        self.classify = self.says(classes)
        start(self.classify)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)  # [B, features]
        return self.head(features).squeeze(1), self.classify(features)  # [B], [B, classes]
