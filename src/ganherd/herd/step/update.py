"""Update the weights of all members: clip gradients by norm, determine each member's learning rate, take an Adam step."""

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
    """Clip each member's gradient by its norm, and take one Adam step.

    Args:
        kind: `g` for generators, `d` for discriminators.
        grads: Pieces that, side by side, are the gradient [N, P].
        number: The number of the update within the step, for its draws.
    """
    if rules.grad_clip is not None:
        whole = join_pieces(grads)  # [N, P]
        norm = whole.norm(dim=1, keepdim=True)  # [N, 1]
        grads = [whole * (rules.grad_clip / norm.clamp(min=rules.grad_clip))]
    m, v, t = (state[f"{kind}.adam.{name}"] for name in ("m", "v", "t"))
    if rules.wander != "off":
        mutate_learning_rates_(
            state, kind, draws, number, rules.wander, rules.wander_strength, rules.wander_probability
        )
    lr, beta1, beta2 = _learning_rate(kind, state, rules, step), state["set.beta1"], state["set.beta2"]
    adam_(state[f"{kind}.params"], grads, m, v, t, lr, beta1, beta2, rules.eps)


def update_ema_(state: State, decay: float) -> None:
    """Update the running averages of the generators' weights.

    At first an average moves faster, by 9 / (9 + number of updates), so that the initial weights do not stay in it. After a short
    run it is about the average over the last tenth.
    """
    params, updates = state["g.params"], state["g.ema.t"]
    updates += 1
    warmup = 9.0 / (9.0 + updates.to(params.dtype))  # [N]
    state["g.ema"].lerp_(params, warmup.clamp(min=1.0 - decay)[:, None])


def _learning_rate(kind: str, state: State, rules: StepRules, step: int | Tensor) -> Tensor:
    """Return the learning rate of each member for this update, [N]: its own, smoothed after a swap."""
    lr = state[f"set.lr_{kind}"]
    if rules.smoothing:
        since = torch.as_tensor(step, device=lr.device) - state["set.met"]
        lr = lr * smoothing_factors(since, rules.smoothing)[kind == "d"]
    return lr
