"""The loss of a relativistic GAN (Jolicoeur-Martineau, 2018): real images must look more real than generated ones."""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

import ganherd


class RelativisticSettings(ganherd.register.Settings):
    margin: float = Field(0.0, ge=0)  # by how much


@ganherd.register.loss("relativistic", settings=RelativisticSettings)
class Relativistic:
    """The difference of the logits of real and generated images, pair by pair."""

    def __init__(self, settings: RelativisticSettings) -> None:
        self.margin = settings.margin

    def d(self, real: Tensor, fake: Tensor) -> Tensor:
        return softplus(self.margin - (real - fake)).mean(-1)  # [..., B] to [...]

    def g(self, real: Tensor, fake: Tensor) -> Tensor:
        return softplus(self.margin - (fake - real)).mean(-1)
