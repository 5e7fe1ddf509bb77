"""Building blocks of several nets: stacks of linear layers, the initialisation of DCGAN, and the label as an input.

`make` in the classes below is a function that builds the wrapped net from keyword arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Make = Callable[..., nn.Module]


def leaky() -> nn.Module:
    """Return a LeakyReLU of slope 0.2, not in place, because a gradient penalty differentiates through it twice."""
    return nn.LeakyReLU(0.2)


def stack(
    widths: Sequence[int], activation: Callable[[], nn.Module] = leaky, batch_norm: bool = False, dropout: float = 0.0
) -> list[nn.Module]:
    """Return linear layers from widths[0] inputs to widths[-1] outputs, with activations between them.

    Batch norm, if chosen, comes before each activation, and dropout after it.
    """
    layers: list[nn.Module] = []
    last = len(widths) - 2
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        normalised = batch_norm and i < last
        layers.append(nn.Linear(n_in, n_out, bias=not normalised))  # batch norm would cancel a bias
        if i < last:
            if normalised:
                layers.append(nn.BatchNorm1d(n_out))
            layers.append(activation())
            if dropout:
                layers.append(nn.Dropout(dropout))
    return layers


class FlatGenerator(nn.Module):
    """A generator of linear layers: noise [B, Z] to samples [B, *shape], with a tanh for images only."""

    def __init__(self, shape: tuple[int, ...], layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        squash = [nn.Tanh()] if len(shape) == 3 else []
        self.layers = nn.Sequential(*layers, *squash)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z)  # [B, prod(shape)]
        return x.reshape(z.shape[0], *self.shape)  # [B, *shape]


class FlatDiscriminator(nn.Module):
    """A discriminator of linear layers: flattened samples [B, …] to logits [B]."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x.flatten(1))  # [B, 1]
        return logits.squeeze(1)  # [B]


def init_dcgan(module: nn.Module) -> None:
    """Initialise as in DCGAN: weights from N(0, 0.02²), gains of batch norm from N(1, 0.02²), and biases with 0."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and layer.affine:
            nn.init.normal_(layer.weight, 1.0, 0.02)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def append_label(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return x [B, C, …] with a channel more for each class: 1 in the channel of the label y [B], 0 in the others.

    >>> append_label(torch.tensor([[5.0], [6.0]]), torch.tensor([0, 2]), 3).tolist()
    [[5.0, 1.0, 0.0, 0.0], [6.0, 0.0, 0.0, 1.0]]
    """
    one_hot = F.one_hot(y, classes).to(x.dtype)  # [B, classes]
    one_hot = one_hot.reshape(*one_hot.shape, *(1,) * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
    return torch.cat([x, one_hot], 1)


fx.wrap("append_label")  # torch.fx then traces it as one operation


class LabelledGenerator(nn.Module):
    """A generator whose net gets the noise with the label appended, as one number per class (one-hot)."""

    def __init__(self, make: Make, shape: tuple[int, ...], latent: int, classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=shape, latent=latent + classes), classes

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x: Tensor = self.net(append_label(z, y, self.classes))
        return x


class LabelledDiscriminator(nn.Module):
    """A discriminator whose net gets the image with the label appended, as one channel per class (one-hot)."""

    def __init__(self, make: Make, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=(shape[0] + classes, *shape[1:])), classes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.net(append_label(x, y, self.classes))
        return logits


def logit_of_class(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logit [B] of each image's class from logits [B, K] of all classes.

    >>> logit_of_class(torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([1, 0]))
    tensor([6., 7.])
    """
    # Not by indexing, whose gradient is not deterministic on a GPU.
    return (logits * F.one_hot(y, logits.shape[1]).to(logits.dtype)).sum(1)


fx.wrap("logit_of_class")


class ClassHeadDiscriminator(nn.Module):
    """A discriminator with one output for each class, of which the output of the image's class is its logit.

    The last layer then has a weight vector for each class, like the class vectors of a projection discriminator.
    """

    def __init__(self, make: Make, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=shape, outputs=classes), classes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return logit_of_class(self.net(x).reshape(x.shape[0], self.classes), y)
