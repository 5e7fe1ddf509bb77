"""GAP's pair for 2-D toys: four fully connected batch-normalised layers, then a linear output."""

from __future__ import annotations

import math

from torch import nn

from ganherd.nets.blocks import FlatDiscriminator, FlatGenerator, stack


class ToyGenerator(FlatGenerator):
    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 128, batch_norm: bool = True) -> None:
        super().__init__(shape, stack([latent, *[width] * 4, math.prod(shape)], nn.ReLU, batch_norm))


class ToyDiscriminator(FlatDiscriminator):
    def __init__(self, shape: tuple[int, ...], *, width: int = 128, batch_norm: bool = True) -> None:
        super().__init__(stack([math.prod(shape), *[width] * 4, 1], batch_norm=batch_norm))
