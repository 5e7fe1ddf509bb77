"""What the two nets of a member minimise, from the discriminator's logits (or critic values) alone.

Each takes logits [..., B] and answers one number per member [...]. Lower is better for the net that is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, sigmoid
from torch.nn.functional import relu, softplus


@dataclass(frozen=True)
class Loss:
    """One game: what the discriminator minimises on (real, fake), what the generator minimises on fake."""

    d: Callable[[Tensor, Tensor], Tensor]
    g: Callable[[Tensor], Tensor]
    penalty: bool = False  # adds a gradient penalty to the discriminator's
    clip: bool = False  # clips the discriminator's parameters after each of its updates


def _cross_entropy(real: Tensor, fake: Tensor) -> Tensor:
    """-log D(x) - log(1 - D(G(z))), with D = sigmoid(logit)."""
    return softplus(-real).mean(-1) + softplus(fake).mean(-1)


def _squares(real: Tensor, fake: Tensor) -> Tensor:
    return 0.5 * ((real - 1.0).square().mean(-1) + fake.square().mean(-1))


def _squares_of_probabilities(real: Tensor, fake: Tensor) -> Tensor:
    return (sigmoid(real) - 1.0).square().mean(-1) + sigmoid(fake).square().mean(-1)


def _distance(real: Tensor, fake: Tensor) -> Tensor:
    """Minus the critic's estimate of the Wasserstein distance."""
    return fake.mean(-1) - real.mean(-1)


def _hinge(real: Tensor, fake: Tensor) -> Tensor:
    return relu(1.0 - real).mean(-1) + relu(1.0 + fake).mean(-1)


def _raise_critic(fake: Tensor) -> Tensor:
    return -fake.mean(-1)


LOSSES: dict[str, Loss] = {
    # log(1 - D(G(z))): the game of the 2014 paper, flat where the discriminator wins.
    "minimax": Loss(_cross_entropy, lambda fake: -softplus(fake).mean(-1)),
    # -log D(G(z)): the heuristic of the same paper.
    "non-saturating": Loss(_cross_entropy, lambda fake: softplus(-fake).mean(-1)),
    "least-squares": Loss(_squares, lambda fake: 0.5 * (fake - 1.0).square().mean(-1)),
    # Mustangs' least squares: of D(G(z)) as a probability, as its code has it.
    "least-squares-sigmoid": Loss(_squares_of_probabilities, lambda fake: (sigmoid(fake) - 1.0).square().mean(-1)),
    "wasserstein": Loss(_distance, _raise_critic, clip=True),
    "wasserstein-gp": Loss(_distance, _raise_critic, penalty=True),
    "hinge": Loss(_hinge, _raise_critic),
}


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, at: Tensor) -> Tensor:
    """(|gradient| - 1)² of the critic between real and fake [N, B, …], `at` [N, B] of the way; [N]."""
    at = at.reshape(*at.shape, *(1,) * (real.dim() - 2)).to(real.dtype)
    between = (real + at * (fake - real)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    norm = (
        slope.flatten(2).square().sum(-1).add(1e-12).sqrt()
    )  # [N, B]; the constant keeps the root's slope finite at 0
    return (norm - 1.0).square().mean(-1)


def r1_penalty(critic: Callable[[Tensor], Tensor], real: Tensor) -> Tensor:
    """|gradient|² of the critic at real [N, B, …], averaged over the batch; [N]. R1 adds gamma/2 of it to the loss."""
    real = real.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    return slope.flatten(2).square().sum(-1).mean(-1)


def class_loss(answers: Tensor, y: Tensor) -> Tensor:
    """-log P(y) of a discriminator that also says which class it sees: logits [N, B, K], labels [N, B]; [N]."""
    return -answers.log_softmax(-1).gather(-1, y[..., None]).mean((-2, -1))


class Game:
    """The losses of a herd: one for all members, or a choice per member out of several."""

    def __init__(self, names: tuple[str, ...], d: str | None = None) -> None:
        """`d`: the loss of all discriminators, where the choice is the generators' alone."""
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
        """[N] bool: whose loss has a `penalty` or a `clip`; by comparisons alone, which a CUDA graph can hold."""
        if self.d_name is not None:
            return torch.full_like(choice, getattr(LOSSES[self.d_name], what), dtype=torch.bool)
        found = torch.zeros_like(choice, dtype=torch.bool)
        for number, loss in enumerate(self._losses):
            if getattr(loss, what):
                found = found | (choice == number)
        return found

    def _choose(self, choice: Tensor, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        return torch.stack(values).gather(0, choice[None])[0]
