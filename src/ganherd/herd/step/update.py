"""One update of all members' weights: gradients clipped to their norm, each member's learning rate of the moment, Adam."""

from __future__ import annotations

import torch
from torch import Tensor

from ganherd.herd.rng import Streams
from ganherd.herd.state import State
from ganherd.herd.step.adam import adam_
from ganherd.herd.step.mutation import mutate_learning_rates_, smoothing_factors
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.weights import join_pieces


def update_(
    kind: str, state: State, grads: list[Tensor], rules: StepRules, draws: Streams, number: int, step: int | Tensor
) -> None:
    """Clips the gradient of each member, given in pieces, to its norm and takes one Adam step.

    `number`: of the update within the step, for its draws.
    """
    if rules.grad_clip is not None:
        whole = join_pieces(grads)  # [N, P]
        norm = whole.norm(dim=1, keepdim=True)  # [N, 1]
        grads = [whole * (rules.grad_clip / norm.clamp(min=rules.grad_clip))]
    m, v, t = (state[f"{kind}.adam.{part}"] for part in ("m", "v", "t"))
    if rules.wander != "off":
        mutate_learning_rates_(
            state, kind, draws, number, rules.wander, rules.wander_strength, rules.wander_probability
        )
    lr, beta1, beta2 = _rate(kind, state, rules, step), state["set.beta1"], state["set.beta2"]
    adam_(state[f"{kind}.params"], grads, m, v, t, lr, beta1, beta2, rules.eps)


def update_ema_(state: State, decay: float) -> None:
    """Moves the generators' running averages. A young one moves faster, by 9 / (9 + its updates), so that what it began with
    does not stay in it: of a short run it is about the average of the last tenth."""
    params, updates = state["g.params"], state["g.ema.t"]
    updates += 1
    young = 9.0 / (9.0 + updates.to(params.dtype))  # [N]
    state["g.ema"].lerp_(params, young.clamp(min=1.0 - decay)[:, None])


def _rate(kind: str, state: State, rules: StepRules, step: int | Tensor) -> Tensor:
    """[N] the learning rate of this update: a member's own, smoothed after a swap."""
    lr = state[f"set.lr_{kind}"]
    if rules.smoothing:
        since = torch.as_tensor(step, device=lr.device) - state["set.met"]
        lr = lr * smoothing_factors(since, rules.smoothing)[kind == "d"]
    return lr
