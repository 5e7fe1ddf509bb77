"""The losses of generator and discriminator, computed from the discriminator's logits (or critic values).

Each function takes logits [..., B] and returns one number per member [...], which the named net minimises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, sigmoid
from torch.nn.functional import relu, softplus

from ganherd.util.registry import LOSSES

# Of the critic, real and fake images [N, B, …] and uniform numbers [N, B]; returns one number per member [N]
Penalty = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """The losses of the discriminator on (real, fake) and of the generator on fake, or on (real, fake) if `g_sees_real`."""

    d: Callable[[Tensor, Tensor], Tensor]
    g: Callable[..., Tensor]
    # Function of (critic, real, fake, at) that is added to the discriminator's loss with the weight `loss.gp_weight`
    penalty: Penalty | None = None
    clip: bool = False  # clip the discriminator's parameters after each of its updates
    g_sees_real: bool = False  # the generator's loss needs the discriminator's logits of real images, too


def _cross_entropy(real: Tensor, fake: Tensor) -> Tensor:
    """Return -log D(x) - log(1 - D(G(z))), with D = sigmoid(logit)."""
    return softplus(-real).mean(-1) + softplus(fake).mean(-1)


def _squares(real: Tensor, fake: Tensor) -> Tensor:
    return 0.5 * ((real - 1.0).square().mean(-1) + fake.square().mean(-1))


def _squares_of_probabilities(real: Tensor, fake: Tensor) -> Tensor:
    return (sigmoid(real) - 1.0).square().mean(-1) + sigmoid(fake).square().mean(-1)


def _distance(real: Tensor, fake: Tensor) -> Tensor:
    """Return minus the critic's estimate of the Wasserstein distance."""
    return fake.mean(-1) - real.mean(-1)


def _hinge(real: Tensor, fake: Tensor) -> Tensor:
    return relu(1.0 - real).mean(-1) + relu(1.0 + fake).mean(-1)


def _paired(real: Tensor, fake: Tensor) -> Tensor:
    return softplus(fake - real).mean(-1)


def _raise_critic(fake: Tensor) -> Tensor:
    return -fake.mean(-1)


# log(1 - D(G(z))), the loss of the 2014 paper: its gradient vanishes when the discriminator wins.
MINIMAX = Loss(_cross_entropy, lambda fake: -softplus(fake).mean(-1))
# -log D(G(z)), the heuristic of the same paper.
NON_SATURATING = Loss(_cross_entropy, lambda fake: softplus(-fake).mean(-1))
LEAST_SQUARES = Loss(_squares, lambda fake: 0.5 * (fake - 1.0).square().mean(-1))
# Mustangs' least squares, of D(G(z)) as a probability, as in its code.
LEAST_SQUARES_SIGMOID = Loss(_squares_of_probabilities, lambda fake: (sigmoid(fake) - 1.0).square().mean(-1))
WASSERSTEIN = Loss(_distance, _raise_critic, clip=True)
HINGE = Loss(_hinge, _raise_critic)
# Each real image is compared with a generated one (Jolicoeur-Martineau, 2018; R3GAN, 2024).
RELATIVISTIC_PAIRING = Loss(_paired, lambda real, fake: _paired(fake, real), g_sees_real=True)


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, at: Tensor) -> Tensor:
    """Return (|gradient| - 1)² [N] of the critic between real and fake [N, B, …].

    Args:
        at: [N, B] position between the two: 0 is real, 1 is fake.
    """
    at = at.reshape(*at.shape, *(1,) * (real.dim() - 2)).to(real.dtype)
    between = (real + at * (fake - real)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    # [N, B]; the constant keeps the slope of the root finite at 0
    norm = slope.flatten(2).square().sum(-1).add(1e-12).sqrt()
    return (norm - 1.0).square().mean(-1)


WASSERSTEIN_GP = Loss(_distance, _raise_critic, penalty=gradient_penalty)


def r1_penalty(critic: Callable[[Tensor], Tensor], real: Tensor) -> Tensor:
    """Return |gradient|² [N] of the critic at real [N, B, …], averaged over the batch. R1 adds gamma/2 of it to the loss."""
    real = real.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    return slope.flatten(2).square().sum(-1).mean(-1)


def class_loss(answers: Tensor, y: Tensor) -> Tensor:
    """Return -log P(y) [N] of a discriminator that also classifies: logits [N, B, K], labels [N, B]."""
    return -answers.log_softmax(-1).gather(-1, y[..., None]).mean((-2, -1))


class Game:
    """The losses of a herd: one for all members, or one of several for each member."""

    def __init__(
        self, names: tuple[str, ...], d: str | None = None, settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Look up the losses by name.

        Args:
            names: The losses that members choose from.
            d: The loss of all discriminators. None: each member has the discriminator loss of its chosen loss, too.
            settings: The settings of losses by their names; others have their defaults.
        """
        self.names, self.d_name, self.settings = names, d, dict(settings or {})
        self._losses = [self.loss(name) for name in names]
        self._d_losses = [self.loss(d)] if d is not None else self._losses
        self.penalties = tuple(dict.fromkeys(loss.penalty for loss in self._d_losses if loss.penalty is not None))
        self.penalty, self.clip = bool(self.penalties), any(loss.clip for loss in self._d_losses)
        self.g_sees_real = any(loss.g_sees_real for loss in self._losses)

    def loss(self, name: str) -> Loss:
        """Return a loss by its name, with the settings of this game."""
        return LOSSES[name].build(self.settings.get(name))

    def d(self, choice: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        return self._choose(choice, [loss.d(real, fake) for loss in self._d_losses])

    def g(self, choice: Tensor, fake: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the losses of the generators [N]. `real`: logits of real images, if `g_sees_real`."""
        return self._choose(choice, [loss.g(real, fake) if loss.g_sees_real else loss.g(fake) for loss in self._losses])

    def is_common(self, penalty: Penalty) -> bool:
        """Return whether the losses of all discriminators have this penalty."""
        return all(loss.penalty == penalty for loss in self._d_losses)

    def has_penalty(self, penalty: Penalty, choice: Tensor) -> Tensor:
        """Return which members have a loss with this penalty, bool [N]. `choice`: the index of each member's loss."""
        return self._where(choice, lambda loss: loss.penalty == penalty)

    def has_clip(self, choice: Tensor) -> Tensor:
        """Return which members have a loss with weight clipping, bool [N]. `choice`: the index of each member's loss."""
        return self._where(choice, lambda loss: loss.clip)

    def _where(self, choice: Tensor, holds: Callable[[Loss], bool]) -> Tensor:
        """Return for which members something holds. Only comparisons of tensors are used: a CUDA graph captures them."""
        if self.d_name is not None:
            return torch.full_like(choice, holds(self._d_losses[0]), dtype=torch.bool)
        members = torch.zeros_like(choice, dtype=torch.bool)
        for number, loss in enumerate(self._losses):
            if holds(loss):
                members = members | (choice == number)
        return members

    def _choose(self, choice: Tensor, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        return torch.stack(values).gather(0, choice[None])[0]
