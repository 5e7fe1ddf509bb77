"""The losses of generator and discriminator, computed from the discriminator's logits (or critic values).

Each function takes logits [..., B] and returns one number per member [...], which the named net minimises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, sigmoid
from torch.nn.functional import relu, softplus

from ganherd.util.registry import LOSSES


@dataclass(frozen=True)
class Loss:
    """The losses of the discriminator on (real, fake) and of the generator on fake."""

    d: Callable[[Tensor, Tensor], Tensor]
    g: Callable[[Tensor], Tensor]
    penalty: bool = False  # add a gradient penalty to the discriminator's loss
    clip: bool = False  # clip the discriminator's parameters after each of its updates


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
WASSERSTEIN_GP = Loss(_distance, _raise_critic, penalty=True)
HINGE = Loss(_hinge, _raise_critic)


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

    def __init__(self, names: tuple[str, ...], d: str | None = None) -> None:
        """Look up the losses by name.

        Args:
            names: The losses that members choose from.
            d: The loss of all discriminators. None: each member has the discriminator loss of its chosen loss, too.
        """
        self.names, self.d_name = names, d
        self._losses = [LOSSES[name] for name in names]
        self._d_losses = [LOSSES[d]] if d is not None else self._losses
        self.penalty = any(loss.penalty for loss in self._d_losses)
        self.clip = any(loss.clip for loss in self._d_losses)

    def d(self, choice: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        return self._choose(choice, [loss.d(real, fake) for loss in self._d_losses])

    def g(self, choice: Tensor, fake: Tensor) -> Tensor:
        return self._choose(choice, [loss.g(fake) for loss in self._losses])

    def has(self, what: str, choice: Tensor) -> Tensor:
        """Return which members have a loss with a gradient penalty or with weight clipping, bool [N].

        Only comparisons of tensors are used, because a CUDA graph captures them.

        Args:
            what: `penalty` or `clip`.
            choice: The index of each member's loss in `names`, [N].
        """
        if self.d_name is not None:
            return torch.full_like(choice, getattr(LOSSES[self.d_name], what), dtype=torch.bool)
        members = torch.zeros_like(choice, dtype=torch.bool)
        for number, loss in enumerate(self._losses):
            if getattr(loss, what):
                members = members | (choice == number)
        return members

    def _choose(self, choice: Tensor, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        return torch.stack(values).gather(0, choice[None])[0]
