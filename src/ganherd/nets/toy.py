"""The nets for 2-D toy data: GAP's (four batch-normalised layers), and with other settings those of ALI and PacGAN.

PacGAN's generator is `{name: toy, width: 400, init: normal}`, and its discriminator
`{name: toy, width: 200, layers: 3, activation: maxout, batch_norm: false, init: normal}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.nets.common.blocks import FlatDiscriminator, FlatGenerator, leaky, stack

PIECES = 5  # pieces of a maxout unit, as in ALI and PacGAN


class ToyGenerator(FlatGenerator):
    """A generator of four hidden layers with ReLU."""

    def __init__(
        self, shape: tuple[int, ...], latent: int, *, width: int = 128, batch_norm: bool = True, init: str = "torch"
    ) -> None:
        super().__init__(shape, stack([latent, *[width] * 4, math.prod(shape)], nn.ReLU, batch_norm))
        if init == "normal":
            _init_normal(self)


class ToyDiscriminator(FlatDiscriminator):
    """A discriminator of hidden layers with LeakyReLU, ReLU or maxout."""

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 128,
        layers: int = 4,
        activation: str = "leaky",
        batch_norm: bool = True,
        init: str = "torch",
    ) -> None:
        n_in, n_out = math.prod(shape), width * (PIECES if activation == "maxout" else 1)
        hidden: list[nn.Module] = []
        for _ in range(layers):
            hidden.append(nn.Linear(n_in, n_out, bias=not batch_norm))  # batch norm would cancel a bias
            if batch_norm:
                hidden.append(nn.BatchNorm1d(n_out))
            hidden.append(_ACTIVATIONS[activation]())
            n_in = width
        super().__init__([*hidden, nn.Linear(n_in, 1)])
        if init == "normal":
            _init_normal(self)


class Maxout(nn.Module):
    """Return the largest number of each group of `PIECES` consecutive inputs: [B, width * PIECES] to [B, width].

    >>> import torch
    >>> Maxout()(torch.arange(10.0)[None])
    tensor([[4., 9.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(x, PIECES)  # [B, width]


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"leaky": leaky, "relu": nn.ReLU, "maxout": Maxout}


def _init_normal(module: nn.Module) -> None:
    """Initialise weights of linear layers from N(0, 0.02²) and biases with 0, as ALI and PacGAN do."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
