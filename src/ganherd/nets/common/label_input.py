"""Wrap nets without a label input: the label is appended to the noise or to the image, one number or map per class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Make = Callable[..., nn.Module]


def append_label(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return x [B, C, …] with `classes` more channels: 1 in the channel of the label, 0 in the others.

    >>> append_label(torch.tensor([[5.0], [6.0]]), torch.tensor([0, 2]), 3).tolist()
    [[5.0, 1.0, 0.0, 0.0], [6.0, 0.0, 0.0, 1.0]]
    """
    one_hot = F.one_hot(y, classes).to(x.dtype)  # [B, classes]
    one_hot = one_hot.reshape(*one_hot.shape, *(1,) * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
    return torch.cat([x, one_hot], 1)


fx.wrap("append_label")  # traced as one operation


class LabelledGenerator(nn.Module):
    """A generator that gets the noise with the label appended."""

    def __init__(self, make: Make, shape: tuple[int, ...], latent: int, classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=shape, latent=latent + classes), classes

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x: Tensor = self.net(append_label(z, y, self.classes))
        return x


class LabelledDiscriminator(nn.Module):
    """A discriminator that gets the image with the label appended, as one channel per class."""

    def __init__(self, make: Make, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=(shape[0] + classes, *shape[1:])), classes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.net(append_label(x, y, self.classes))
        return logits
