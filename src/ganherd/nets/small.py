"""A small MLP for tiny images, used by the default recipe: two hidden layers, LeakyReLU, fit for a gradient penalty."""

from __future__ import annotations

import math

from ganherd.nets.common.blocks import FlatDiscriminator, FlatGenerator, stack


class SmallGenerator(FlatGenerator):
    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 128, batch_norm: bool = False) -> None:
        super().__init__(shape, stack([latent, width, width, math.prod(shape)], batch_norm=batch_norm))


class SmallDiscriminator(FlatDiscriminator):
    """No batch norm: with it the gradient of one image's logit would depend on the other images of the batch."""

    def __init__(self, shape: tuple[int, ...], *, width: int = 128) -> None:
        super().__init__(stack([math.prod(shape), width, width, 1]))
