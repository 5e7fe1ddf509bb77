"""Layers whose weight is divided by its largest singular value (Miyato et al., 2018), for one GAN or stacked members.

The estimate lives in a buffer `u` that a training forward moves on by one power iteration and an evaluation leaves alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def divide(weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """weight [..., O, …] over its largest singular value as u [..., O] sees it, and u: one power iteration on if it moves.

    Gradients flow through the weight alone: u and its counterpart v count as constants.

    >>> weight, u = divide(3.0 * torch.eye(2), torch.tensor([0.6, 0.8]), move=True)
    >>> weight
    tensor([[1., 0.],
            [0., 1.]])
    """
    matrix = weight.flatten(u.dim())  # [..., O, K]
    with torch.autocast(weight.device.type, enabled=False):  # half precision would spoil the estimate
        v = F.normalize(u[..., None, :] @ matrix.detach(), dim=-1).mT  # [..., K, 1]
        image = (matrix @ v).squeeze(-1)  # [..., O]
        u = F.normalize(image.detach(), dim=-1) if move else u
        sigma = (u * image).sum(-1)  # [...]
    return weight / sigma.reshape(*sigma.shape, *(1,) * (weight.dim() - sigma.dim())), u


class Spectral:
    """What the layers below share: a direction `u` beside the weight, and the divided weight."""

    weight: Any
    u: Tensor
    training: bool
    register_buffer: Any

    def _begin(self) -> None:
        self.register_buffer("u", F.normalize(torch.randn(self.weight.shape[0]), dim=0))

    def divided(self) -> Tensor:
        """The weight that the layer applies; in training it moves `u` on, in place, as a buffer must be."""
        weight, u = divide(self.weight, self.u, self.training)
        if self.training:
            with torch.no_grad():
                self.u.copy_(u)
        return weight


class SpectralConv2d(Spectral, nn.Conv2d):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._begin()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._conv_forward(x, self.divided(), self.bias)
        return result


class SpectralLinear(Spectral, nn.Linear):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._begin()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.divided(), self.bias)


class SpectralEmbedding(Spectral, nn.Embedding):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._begin()

    def forward(self, y: Tensor) -> Tensor:
        return F.embedding(y, self.divided())
