"""The label as an input of nets that know nothing of labels: one number, or one map, for each class beside the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Make = Callable[..., nn.Module]


def beside(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """x [B, C, …] with `classes` more channels: all 1 in that of the label, all 0 in the others.

    >>> beside(torch.tensor([[5.0], [6.0]]), torch.tensor([0, 2]), 3).tolist()
    [[5.0, 1.0, 0.0, 0.0], [6.0, 0.0, 0.0, 1.0]]
    """
    told = F.one_hot(y, classes).to(x.dtype)  # [B, classes]
    told = told.reshape(*told.shape, *(1,) * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
    return torch.cat([x, told], 1)


fx.wrap("beside")  # traced as one operation


class LabelledGenerator(nn.Module):
    """A generator whose noise is followed by the label."""

    def __init__(self, make: Make, shape: tuple[int, ...], latent: int, classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=shape, latent=latent + classes), classes

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x: Tensor = self.net(beside(z, y, self.classes))
        return x


class LabelledDiscriminator(nn.Module):
    """A discriminator whose image is followed by the label, as one more channel for each class."""

    def __init__(self, make: Make, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=(shape[0] + classes, *shape[1:])), classes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.net(beside(x, y, self.classes))
        return logits
