"""AC-GAN's discriminator (Odena et al., 2017): it is not told the class but says it, beside real or made."""

from __future__ import annotations

from torch import Tensor, nn

from ganherd.nets.bodies import BODIES, start
from ganherd.nets.spectral import SpectralLinear


class AcganDiscriminator(nn.Module):
    """A body with two heads on the same features."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        width: int = 64,
        attention: bool = False,
        spectral: bool = True,
        body: str = "residual",
    ) -> None:
        super().__init__()
        self.body = BODIES[body](shape, width, attention, spectral)
        linear = SpectralLinear if spectral else nn.Linear
        self.head, self.classify = linear(self.body.features, 1), linear(self.body.features, classes)
        start(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)  # [B, features]
        return self.head(features).squeeze(1), self.classify(features)  # [B], [B, classes]
