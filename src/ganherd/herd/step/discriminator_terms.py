"""Terms that are added to the discriminators' losses in an update: gradient penalties, consistency and LeCam.

All results are [N], one number for each of N members (GANs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.augment import augment, numbers
from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, buffers_of
from ganherd.herd.step.partial_terms import having, only_for
from ganherd.herd.step.regularisers import lecam, slope_by_noise
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.schedules import scheduled
from ganherd.losses.adversarial import r1_penalty

# (images [N, B, …], the pass's number within the update, whether its result is differentiated twice) -> logits [N, B]
Critic = Callable[[Tensor, int, bool], Tensor]


@dataclass(frozen=True)
class DiscriminatorUpdate:
    """A discriminator update after its forward passes, with all that further terms of its loss depend on."""

    rules: StepRules
    state: State
    draws: Streams  # the members' random numbers at this step
    step: int | Tensor  # a tensor inside a captured graph
    number: int  # of the update within the step
    uses_r1_or_r2: bool  # whether R1 and R2 act at this step
    images: tuple[Tensor, Tensor]  # real and generated, [N, B, …] each
    logits: tuple[Tensor, Tensor]  # of real and of generated images, [N, B] each
    critic: Critic
    lacks: Callable[[Tensor | None], bool]  # whether no pass is made for a term that these members have, bool [N]

    def weight(self, setting: str, value: float) -> float | Tensor:
        """Return the weight of a term at this step, by its setting and the value of that in the recipe."""
        return scheduled(self.state, self.rules.schedules, setting, value, self.step)

    def only_for(self, members: Tensor | None) -> AbstractContextManager[None]:
        """Return a context in which passes change the buffers of these members only; None: of all."""
        return only_for(members, buffers_of(self.state, "d"))


def penalties(update: DiscriminatorUpdate) -> Iterator[Tensor]:
    """Yield the weighted gradient penalties that act in this update, [N] each.

    These are the penalty of the loss (e.g. WGAN-GP, between real and generated images), R1 at real images and R2 at
    generated ones. All of them differentiate the discriminators twice.
    """
    rules, game, shape = update.rules, update.rules.game, update.images[0].shape
    x, fake = update.images
    if packed := rules.packing > 1:  # penalties see packs: [N, B / packing, C * packing, …], with a logit for each
        x, fake = (one.reshape(shape[0], -1, rules.packing * shape[2], *shape[3:]) for one in (x, fake))

    def critic(number: int) -> Callable[[Tensor], Tensor]:
        def logits(at: Tensor) -> Tensor:
            out = update.critic(at.reshape(shape) if packed else at, number, True)
            return out[:, :: rules.packing] if packed else out

        return logits

    if game.penalty:
        mix = update.draws.draw((rng.PENALTY, update.number), (x.shape[1],), "uniform", x.dtype)
        weight = update.weight("gp_weight", rules.gp_weight)
        for penalty in game.penalties:
            members = None if game.is_common(penalty) else game.has_penalty(penalty, update.state["set.loss"])
            if update.lacks(members):
                continue
            with update.only_for(members):
                weighted = weight * penalty(critic(3), x, fake, mix)
            yield weighted if members is None else weighted.where(members, torch.zeros_like(weighted))
    for name, gamma, at, number in (("r1", rules.r1, x, 4), ("r2", rules.r2, fake, 5)):
        members = having(update.state, name)
        if gamma > 0 and update.uses_r1_or_r2 and not rules.slope_noise and not update.lacks(members):
            with update.only_for(members):
                penalised = r1_penalty(critic(number), at)
            yield 0.5 * (update.weight(name, gamma) * rules.r1_every) * penalised


def regularisers(update: DiscriminatorUpdate) -> Iterator[Tensor]:
    """Yield the weighted terms of the loss that act in this update and need no second derivative, [N] each.

    These are R1 and R2 estimated by noise, consistency under augmentation, and LeCam.
    """
    rules = update.rules
    kinds = (
        ("r1", rules.r1, "consistency", rules.consistency),
        ("r2", rules.r2, "consistency_fake", rules.consistency_fake),
    )
    for fake, (name, gamma, other, strength) in enumerate(kinds):
        x, logits = update.images[fake], update.logits[fake]
        members = having(update.state, name)
        if gamma > 0 and update.uses_r1_or_r2 and rules.slope_noise and not update.lacks(members):
            noise = update.draws.draw((rng.PENALTY, update.number, 1 + fake), x.shape[1:], "normal", x.dtype)
            with update.only_for(members):
                near = update.critic(x + rules.slope_noise * noise, 4 + fake, False)
            weight = update.weight(name, gamma) * rules.r1_every
            yield 0.5 * weight * slope_by_noise(logits, near, rules.slope_noise)
        members = having(update.state, other)
        if strength > 0 and not update.lacks(members):
            policy = rules.consistency_augment
            u = update.draws.draw(
                (rng.AUGMENT, update.number, 5 + fake), (rules.batch, numbers(policy)), "uniform", torch.float32
            )
            with torch.no_grad():
                changed = augment(x, u, policy)
            with update.only_for(members):
                same = update.critic(changed, 6 + fake, False)
            yield update.weight(other, strength) * (same - logits).square().mean(1)
    if rules.lecam > 0:
        counts = torch.as_tensor(update.step, device=update.logits[0].device) >= rules.lecam_start
        weight = update.weight("lecam", rules.lecam)
        yield counts.to(update.logits[0].dtype) * weight * lecam(update.state, *update.logits)
