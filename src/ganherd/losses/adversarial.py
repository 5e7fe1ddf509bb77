"""The losses of generator and discriminator, computed from the discriminator's logits (or critic values).

`real` and `fake` are the discriminator's logits of real and generated images [..., B]; a loss is their mean over the
batch, one number per member [...]. Each constant below is one `Loss`. The table at the end of `losses/__init__.py`
registers it under the name that recipes use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, sigmoid
from torch.nn.functional import relu, softplus

from ganherd.util.registry import LOSSES

# Takes the critic, real and fake images [N, B, …] and uniform random numbers [N, B]; returns one number per member [N]
Penalty = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss function for the discriminator and one for the generator, and what else a step has to do for them."""

    d: Callable[[Tensor, Tensor], Tensor]  # takes the logits (real, fake)
    g: Callable[..., Tensor]  # takes the logits (fake), or (real, fake) if `g_sees_real`
    # Function of (critic, real, fake, at); its value times `loss.gp_weight` is added to the discriminator's loss
    penalty: Penalty | None = None
    clip: bool = False  # clip the discriminator's parameters after each of its updates
    g_sees_real: bool = False  # the generator's loss needs the discriminator's logits of real images, too
    of_logits: bool | None = None  # whether probabilities instead of logits would train badly; None: not known


def _cross_entropy(real: Tensor, fake: Tensor) -> Tensor:
    """Return the discriminator's loss [N], the batch mean of -log D(x) - log(1 - D(G(z))), with D = sigmoid(logit)."""
    return softplus(-real).mean(-1) + softplus(fake).mean(-1)


def _squares(real: Tensor, fake: Tensor) -> Tensor:
    """Return the discriminator's loss [N], the batch mean of ((logit(x) - 1)² + logit(G(z))²) / 2."""
    return 0.5 * ((real - 1.0).square().mean(-1) + fake.square().mean(-1))


def _squares_of_probabilities(real: Tensor, fake: Tensor) -> Tensor:
    """Return the discriminator's loss [N], the batch mean of (D(x) - 1)² + D(G(z))², with D = sigmoid(logit)."""
    return (sigmoid(real) - 1.0).square().mean(-1) + sigmoid(fake).square().mean(-1)


def _distance(real: Tensor, fake: Tensor) -> Tensor:
    """Return the critic's loss [N]: minus its estimate of the Wasserstein distance between real and generated images."""
    return fake.mean(-1) - real.mean(-1)


def _hinge(real: Tensor, fake: Tensor) -> Tensor:
    """Return the discriminator's loss [N], the batch mean of max(0, 1 - logit(x)) + max(0, 1 + logit(G(z)))."""
    return relu(1.0 - real).mean(-1) + relu(1.0 + fake).mean(-1)


def _paired(real: Tensor, fake: Tensor) -> Tensor:
    """Return the batch mean [N] of -log sigmoid(real - fake), for pairs of images with the same index in the batch."""
    return softplus(fake - real).mean(-1)


def _raise_critic(fake: Tensor) -> Tensor:
    """Return the generator's loss [N]: minus the critic's mean value of generated images."""
    return -fake.mean(-1)


# The generator minimises log(1 - D(G(z))), as in the 2014 paper; its gradient vanishes when the discriminator wins.
MINIMAX = Loss(_cross_entropy, lambda fake: -softplus(fake).mean(-1), of_logits=True)
# The generator minimises -log D(G(z)), the heuristic of the same paper.
NON_SATURATING = Loss(_cross_entropy, lambda fake: softplus(-fake).mean(-1), of_logits=True)
LEAST_SQUARES = Loss(_squares, lambda fake: 0.5 * (fake - 1.0).square().mean(-1), of_logits=False)
# The least-squares loss of Mustangs: like its code, it takes D(G(z)) as a probability, not as a logit.
LEAST_SQUARES_SIGMOID = Loss(
    _squares_of_probabilities, lambda fake: (sigmoid(fake) - 1.0).square().mean(-1), of_logits=True
)
WASSERSTEIN = Loss(_distance, _raise_critic, clip=True, of_logits=True)
HINGE = Loss(_hinge, _raise_critic, of_logits=True)
# Each real image is compared with a generated one (Jolicoeur-Martineau, 2018; R3GAN, 2024).
RELATIVISTIC_PAIRING = Loss(_paired, lambda real, fake: _paired(fake, real), g_sees_real=True, of_logits=True)


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, at: Tensor) -> Tensor:
    """Return the gradient penalty of WGAN-GP [N]: the batch mean of (|gradient of the critic| - 1)².

    The gradient is taken at points on the straight lines between `real` and `fake` [N, B, …].

    Args:
        at: [N, B] position of each point on its line, from 0 (real) to 1 (fake).
    """
    at = at.reshape(*at.shape, *(1,) * (real.dim() - 2)).to(real.dtype)
    between = (real + at * (fake - real)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    # [N, B]; the constant is added because the derivative of the square root is infinite at 0
    norm = slope.flatten(2).square().sum(-1).add(1e-12).sqrt()
    return (norm - 1.0).square().mean(-1)


WASSERSTEIN_GP = Loss(_distance, _raise_critic, penalty=gradient_penalty, of_logits=True)


def r1_penalty(critic: Callable[[Tensor], Tensor], real: Tensor) -> Tensor:
    """Return the batch mean of |gradient of the critic|² [N] at real images [N, B, …].

    R1 adds gamma/2 times it to the loss.
    """
    real = real.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    return slope.flatten(2).square().sum(-1).mean(-1)


def class_loss(answers: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy [N] of a discriminator that also classifies images.

    Args:
        answers: Logits of the K classes [N, B, K].
        y: Labels [N, B].
    """
    return -answers.log_softmax(-1).gather(-1, y[..., None]).mean((-2, -1))


class Game:
    """The losses of a herd: one loss for all members, or several of which each member has one.

    Methods take `choice`, int [N]: the index in `names` of each member's loss.
    """

    def __init__(
        self, names: tuple[str, ...], d: str | None = None, settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Look up the losses by name.

        Args:
            names: The losses that members choose from.
            d: The name of the loss that all discriminators have. None: each discriminator has the same loss as its
                generator.
            settings: The settings of losses by loss name; losses that are not listed have their defaults.
        """
        self.names, self.d_name, self.settings = names, d, dict(settings or {})
        self._losses = [self.loss(name) for name in names]
        self._d_losses = [self.loss(d)] if d is not None else self._losses
        self.penalties = tuple(dict.fromkeys(loss.penalty for loss in self._d_losses if loss.penalty is not None))
        self.penalty, self.clip = bool(self.penalties), any(loss.clip for loss in self._d_losses)
        # the names of discriminator losses that need logits, and of those that may need them
        self.of_logits = [name for name in ((d,) if d else names) if self.loss(name).of_logits]
        self.perhaps_of_logits = [name for name in ((d,) if d else names) if self.loss(name).of_logits is None]
        self.g_sees_real = any(loss.g_sees_real for loss in self._losses)

    def loss(self, name: str) -> Loss:
        """Return a loss by its name, built with the settings given to this object."""
        return LOSSES[name].build(self.settings.get(name))

    def d(self, choice: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        """Return the losses of the discriminators [N], from the logits of real and generated images [N, B]."""
        return self._choose(choice, [loss.d(real, fake) for loss in self._d_losses])

    def g(self, choice: Tensor, fake: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the losses of the generators [N], from logits [N, B]. `real`: only needed if `g_sees_real`."""
        return self._choose(choice, [loss.g(real, fake) if loss.g_sees_real else loss.g(fake) for loss in self._losses])

    def is_common(self, penalty: Penalty) -> bool:
        """Return whether every discriminator loss of the herd has this penalty."""
        return all(loss.penalty == penalty for loss in self._d_losses)

    def sees_real(self, choice: Tensor) -> Tensor | None:
        """Return which members have a generator loss that needs logits of real images, bool [N]; None: all of them."""
        if all(loss.g_sees_real for loss in self._losses):
            return None
        return _members_with(self._losses, choice, lambda loss: loss.g_sees_real)

    def has_penalty(self, penalty: Penalty, choice: Tensor) -> Tensor:
        """Return which members have a discriminator loss with this penalty, bool [N]."""
        return self._where(choice, lambda loss: loss.penalty == penalty)

    def has_clip(self, choice: Tensor) -> Tensor:
        """Return which members have a discriminator loss with weight clipping, bool [N]."""
        return self._where(choice, lambda loss: loss.clip)

    def _where(self, choice: Tensor, holds: Callable[[Loss], bool]) -> Tensor:
        """Return for which members `holds` is True of the discriminator loss, bool [N]."""
        if self.d_name is not None:
            return torch.full_like(choice, holds(self._d_losses[0]), dtype=torch.bool)
        return _members_with(self._losses, choice, holds)

    def _choose(self, choice: Tensor, values: list[Tensor]) -> Tensor:
        """Return for each member the value of its own loss [N]. `values`: of each loss, for all members [N]."""
        if len(values) == 1:
            return values[0]
        return torch.stack(values).gather(0, choice[None])[0]


def _members_with(losses: Sequence[Loss], choice: Tensor, holds: Callable[[Loss], bool]) -> Tensor:
    """Return for which members `holds` is True of their loss, bool [N]. `choice`: [N] the numbers of their losses.

    Only tensors are compared and `choice` is never read on the host, so that a CUDA graph can capture this.
    """
    members = torch.zeros_like(choice, dtype=torch.bool)
    for number, loss in enumerate(losses):
        if holds(loss):
            members = members | (choice == number)
    return members
