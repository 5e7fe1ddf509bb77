"""Building blocks of several nets: stacks of linear layers, the initialisation of DCGAN, and the label as an input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

Make = Callable[..., nn.Module]


def leaky() -> nn.Module:
    """Return the LeakyReLU of all nets here; never in place, since a gradient penalty differentiates twice."""
    return nn.LeakyReLU(0.2)


def stack(
    widths: Sequence[int], activation: Callable[[], nn.Module] = leaky, batch_norm: bool = False, dropout: float = 0.0
) -> list[nn.Module]:
    """Return linear layers of these widths, with an activation after each but the last.

    Batch norm comes before the activation, dropout after it.
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
    """A stack of linear layers whose output has the shape of the data: tanh for images, linear for points."""

    def __init__(self, shape: tuple[int, ...], layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        squash = [nn.Tanh()] if len(shape) == 3 else []
        self.layers = nn.Sequential(*layers, *squash)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z)  # [B, prod(shape)]
        return x.reshape(z.shape[0], *self.shape)  # [B, *shape]


class FlatDiscriminator(nn.Module):
    """A stack of linear layers on the flattened data, to one logit."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x.flatten(1))  # [B, 1]
        return logits.squeeze(1)  # [B]


def init_dcgan(module: nn.Module) -> None:
    """Initialise weights from N(0, 0.02), biases with 0 and gains of batch norm from N(1, 0.02), layer by layer."""
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


def logit_of_class(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logit [B] of each image's class from logits [B, K] of all classes.

    >>> logit_of_class(torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([1, 0]))
    tensor([6., 7.])
    """
    return (logits * F.one_hot(y, logits.shape[1]).to(logits.dtype)).sum(1)  # indexing is not deterministic on a GPU


fx.wrap("logit_of_class")


class ClassHeadDiscriminator(nn.Module):
    """A discriminator with a logit for each class, of which that of the image's class counts: projection by its last layer."""

    def __init__(self, make: Make, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.net, self.classes = make(shape=shape, outputs=classes), classes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return logit_of_class(self.net(x).reshape(x.shape[0], self.classes), y)
