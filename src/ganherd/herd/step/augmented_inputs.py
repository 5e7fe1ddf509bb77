"""What a discriminator sees of images, real or made: mirrored, under noise, augmented, as the rules of a step say."""

from __future__ import annotations

import torch
from torch import Tensor

from ganherd.augment import augment, numbers
from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.herd.state import State
from ganherd.herd.step.rules import StepRules


def input_noise_scale(rules: StepRules, state: State, step: int | Tensor) -> Tensor | None:
    """[N] its standard deviation at this step, for each member; None: there is no noise."""
    if not rules.input_noise:
        return None
    scale = state["set.input_noise"]
    if rules.input_noise_steps:
        done = torch.as_tensor(step, dtype=torch.float64, device=scale.device) / rules.input_noise_steps
        if rules.input_noise_decay == "linear":
            scale = scale * (1.0 - done).clamp(min=0.0)
        else:  # whole, then a third, then none
            scale = scale * ((done < 0.5).to(scale.dtype) * 2.0 + (done < 1.0).to(scale.dtype)) / 3.0
    return scale.to(state["g.params"].dtype)


def augment_inputs(rules: StepRules, x: Tensor, scale: Tensor | None, draws: Streams, update: int, made: int) -> Tensor:
    """What is seen of x [N, B, …], real (`made` 0) or made (1); `scale` [N]: of the input noise."""
    if rules.flip and not made:
        u = draws.draw((rng.AUGMENT, update, 2), (rules.batch, 1), "uniform", torch.float32)
        x = augment(x, u, ("flip",))
    if scale is not None and not (made and rules.input_noise_on == "real"):
        noise = draws.draw((rng.INPUT_NOISE, update, made), x.shape[1:], "normal", x.dtype)
        x = x + scale.reshape(-1, *(1,) * (x.dim() - 1)) * noise
    if rules.augment:
        shape = (rules.batch, numbers(rules.augment))
        x = augment(x, draws.draw((rng.AUGMENT, update, made), shape, "uniform", torch.float32), rules.augment)
    return x
