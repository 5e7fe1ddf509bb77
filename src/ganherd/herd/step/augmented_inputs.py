"""Prepare the images that discriminators see, real or generated: flip them, add noise and augment them."""

from __future__ import annotations

import torch
from torch import Tensor

from ganherd.augment import augment, numbers
from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.herd.state import State
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.schedules import scheduled


def input_noise_scale(rules: StepRules, state: State, step: int | Tensor) -> Tensor | None:
    """Return the standard deviation of each member's input noise at this step, [N]; None if there is no noise."""
    if not rules.input_noise:
        return None
    scale = state["set.input_noise"]
    if rules.input_noise_steps:
        done = torch.as_tensor(step, dtype=torch.float64, device=scale.device) / rules.input_noise_steps
        if rules.input_noise_decay == "linear":
            scale = scale * (1.0 - done).clamp(min=0.0)
        else:  # full strength for the first half, a third for the second half, then none
            scale = scale * ((done < 0.5).to(scale.dtype) * 2.0 + (done < 1.0).to(scale.dtype)) / 3.0
    return scale.to(state["g.params"].dtype)


def augment_inputs(
    rules: StepRules,
    x: Tensor,
    state: State,
    scale: Tensor | None,
    draws: Streams,
    update: int,
    fake: int,
    step: int | Tensor,
) -> Tensor:
    """Return images x [N, B, …] of N members (GANs) as the discriminators see them, by the rules of the step.

    Real images may be flipped, noise may be added, and images may be augmented at random.

    Args:
        state: The members' state, which has their own settings.
        scale: [N] the standard deviation of the input noise; None for no noise.
        draws: The members' random numbers at this step.
        update: The number of the update within the step, for its random draws.
        fake: 0 for real images, 1 for generated ones.
        step: The number of the step, for schedules.
    """
    if rules.flip and not fake:
        u = draws.draw((rng.AUGMENT, update, 2), (rules.batch, 1), "uniform", torch.float32)
        x = augment(x, u, ("flip",))
    if scale is not None and not (fake and rules.input_noise_on == "real"):
        noise = draws.draw((rng.INPUT_NOISE, update, fake), x.shape[1:], "normal", x.dtype)
        x = x + scale.reshape(-1, *(1,) * (x.dim() - 1)) * noise
    if rules.augment:
        shape = (rules.batch, numbers(rules.augment))
        changed = augment(x, draws.draw((rng.AUGMENT, update, fake), shape, "uniform", torch.float32), rules.augment)
        probability = scheduled(state, rules.schedules, "augment_probability", rules.augment_probability, step)
        if not isinstance(probability, Tensor) and probability == 1.0:
            return changed
        u = draws.draw((rng.AUGMENT, update, 3 + fake), (rules.batch,), "uniform", torch.float32)  # [N, B]
        of_members = isinstance(probability, Tensor) and probability.dim() > 0
        chosen = u < (probability[:, None] if of_members else probability)  # type: ignore[index]
        x = torch.where(chosen.reshape(*chosen.shape, *(1,) * (x.dim() - 2)), changed, x)
    return x
