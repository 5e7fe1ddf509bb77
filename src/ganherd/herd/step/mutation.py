"""Changes of members' settings, as arithmetic on [N]: learning rates that wander or are smoothed, losses that are drawn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.herd.state import State


def mutated_learning_rates(
    lr: Tensor, lr0: Tensor, formula: str, strength: float, normal: Tensor, uniform: Tensor, p: float
) -> Tensor:
    """Learning rates [N] after one mutation; those whose `uniform` is at least p stay as they are.

    reference: lr + strength · N(-lr0/10, lr0), not below 0. lognormal: lr · exp(strength · N(0, 1)).
    """
    if formula == "reference":
        changed = (lr + strength * (normal - 0.1) * lr0).clamp(min=0.0)
    else:
        changed = lr * torch.exp(strength * normal)
    return torch.where(uniform < p, changed, lr)


def mutate_learning_rates_(
    state: State, kind: str, draws: Streams, number: int, formula: str, strength: float, probability: float
) -> None:
    """One mutation of the learning rates of a kind of net; a mutated one stays with its member. `number`: for its draws."""
    lr, first = state[f"set.lr_{kind}"], state[f"set.lr0_{kind}"]
    normal = draws.draw((rng.MUTATE, number, 0), (), "normal", torch.float64).to(lr.device)
    u = draws.draw((rng.MUTATE, number, 1), (), "uniform", torch.float64).to(lr.device)
    lr.copy_(mutated_learning_rates(lr, first, formula, strength, normal, u, probability))


def draw_losses_(state: State, draws: Streams, losses: int) -> None:
    """Gives each member's generator one of the first so many losses of the game."""
    u = draws.draw((rng.MUTATE_LOSS,), (), "uniform", torch.float64)
    state["set.loss"].copy_(losses_from_uniform(u, losses))


def losses_from_uniform(uniform: Tensor, losses: int) -> Tensor:
    """[N] a number below `losses` for each member, all equally probable."""
    return (uniform * losses).long().clamp(max=losses - 1)


def replay_loss_draws(base: np.ndarray, steps: range, losses: int, device: torch.device) -> Tensor:
    """int64 [steps, n] what `draw_losses_` gave the members with these keys [n] at each of the steps: draws can be repeated.

    >>> state = {"set.loss": torch.zeros(3, dtype=torch.int64)}
    >>> draw_losses_(state, Streams(np.arange(3), 5), 2)
    >>> redrawn_losses(np.arange(3), range(4, 6), 2, torch.device("cpu"))[1].equal(state["set.loss"])
    True
    """
    at = rng.keys(np.tile(base, len(steps)), np.repeat(np.array(steps, np.int64), len(base)), rng.MUTATE_LOSS)
    keys = torch.from_numpy(at).to(device) if device.type == "cuda" else at
    u = rng.draw(keys, (), "uniform", torch.float64)
    return losses_from_uniform(u, losses).view(len(steps), len(base))


def smoothing_factors(since: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Factors [N] of (lr_g, lr_d) at the s-th step after a swap, s = since + 1; both 1 from s > length on.

    >>> g, d = smoothed(torch.tensor([0, 1, 9]), 5)
    >>> [round(v, 2) for v in g.tolist()], [round(v, 2) for v in d.tolist()]
    ([1.23, 1.13, 1.0], [0.81, 0.88, 1.0])
    """
    s = since.to(torch.float64) + 1.0
    now = (s >= 1) & (s <= length)
    one = torch.ones_like(s)
    return torch.where(now, 1.0 + 0.3 / (s + 0.3), one), torch.where(now, 1.0 - 0.3 / (s + 0.6), one)
