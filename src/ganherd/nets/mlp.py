"""Pairs of MLPs: that of the cellular paper (64-256-256-784 with a tanh output, and its mirror image), and a small one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from ganherd.nets.common.blocks import FlatDiscriminator, FlatGenerator, leaky, stack

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"leaky": leaky, "tanh": nn.Tanh}


class MlpGenerator(FlatGenerator):
    """The generator of the cellular paper: linear layers with the widths `hidden`, from noise to flattened data."""

    def __init__(
        self, shape: tuple[int, ...], latent: int, *, hidden: Sequence[int] = (256, 256), activation: str = "leaky"
    ) -> None:
        super().__init__(shape, stack([latent, *hidden, math.prod(shape)], _ACTIVATIONS[activation]))


class MlpDiscriminator(FlatDiscriminator):
    """The discriminator of the cellular paper: the hidden layers of the generator in reverse order."""

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        hidden: Sequence[int] = (256, 256),
        activation: str = "leaky",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(stack([math.prod(shape), *reversed(hidden), 1], _ACTIVATIONS[activation], dropout=dropout))


class SmallGenerator(FlatGenerator):
    """The generator of the default recipe, for tiny images: two hidden layers, LeakyReLU."""

    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 128, batch_norm: bool = False) -> None:
        super().__init__(shape, stack([latent, width, width, math.prod(shape)], batch_norm=batch_norm))


class SmallDiscriminator(FlatDiscriminator):
    """The discriminator of the default recipe: two hidden layers, LeakyReLU.

    It has no batch norm, because a gradient penalty must not depend on other samples of the batch.
    """

    def __init__(self, shape: tuple[int, ...], *, width: int = 128, dropout: float = 0.0) -> None:
        super().__init__(stack([math.prod(shape), width, width, 1], dropout=dropout))
