"""Spectral norm: layers whose weight is divided by its largest singular value (Miyato et al., 2018).

The singular value is estimated with a vector `u`, a buffer of the layer, which each forward pass in training mode
improves by one power iteration. `divide` works on one weight, or on the stacked weights of several members.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def divide(weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
    """Divide a weight by an estimate of its largest singular value, and return it with the new u.

    The weight counts as a matrix W [O, rest]. With v = Wᵀu / |Wᵀu|, the estimate is uᵀWv. Gradients flow through W
    only; u and v are constants.

    Args:
        weight: [..., O, …], where leading axes number members.
        u: [..., O], an estimate of the first left singular vector, of length 1.
        move: Replace u by Wv / |Wv| first, one step of the power iteration.

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
    """Base class of the layers below: it holds the vector `u` and computes the divided weight."""

    weight: Any
    u: Tensor
    training: bool
    register_buffer: Any

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.register_buffer("u", F.normalize(torch.randn(self.weight.shape[0]), dim=0))

    def divided(self) -> Tensor:
        """Return the weight divided by its largest singular value; in training mode, update `u` in place."""
        weight, u = divide(self.weight, self.u, self.training)
        if self.training:
            with torch.no_grad():
                self.u.copy_(u)
        return weight


class SpectralConv2d(Spectral, nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._conv_forward(x, self.divided(), self.bias)
        return result


class SpectralLinear(Spectral, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.divided(), self.bias)


class SpectralEmbedding(Spectral, nn.Embedding):
    def forward(self, y: Tensor) -> Tensor:
        return F.embedding(y, self.divided())
