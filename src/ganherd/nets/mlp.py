"""The MLP pair of the cellular paper: 64-256-256-784 with a tanh output, and its mirror image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from ganherd.nets.common.blocks import FlatDiscriminator, FlatGenerator, leaky, stack

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"leaky": leaky, "tanh": nn.Tanh}


class MlpGenerator(FlatGenerator):
    def __init__(
        self, shape: tuple[int, ...], latent: int, *, hidden: Sequence[int] = (256, 256), activation: str = "leaky"
    ) -> None:
        super().__init__(shape, stack([latent, *hidden, math.prod(shape)], _ACTIVATIONS[activation]))


class MlpDiscriminator(FlatDiscriminator):
    def __init__(
        self, shape: tuple[int, ...], *, hidden: Sequence[int] = (256, 256), activation: str = "leaky"
    ) -> None:
        super().__init__(stack([math.prod(shape), *reversed(hidden), 1], _ACTIVATIONS[activation]))
