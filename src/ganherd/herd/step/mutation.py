"""Change the settings of N members (GANs) during training: mutate and smooth learning rates, and draw generator losses.

A setting of all members is one tensor [N] of the state, e.g. `set.lr_g`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.herd.state import State


def mutate_learning_rates_(
    state: State, kind: str, draws: Streams, number: int, formula: str, strength: float, probability: float
) -> None:
    """Mutate the members' learning rates of generators (kind `g`) or discriminators (`d`) in place.

    Args:
        number: The number of this mutation within the step, for its random draws.
        formula: `reference`: lr + strength · X with X drawn from a normal distribution of mean -lr0/10 and deviation
            lr0, the initial learning rate; the result is at least 0. `lognormal`: lr · exp(strength · X) with a
            standard normal X.
        probability: The probability with which a member's learning rate is mutated.
    """
    lr, first = state[f"set.lr_{kind}"], state[f"set.lr0_{kind}"]
    normal = draws.draw((rng.MUTATE, number, 0), (), "normal", torch.float64).to(lr.device)
    u = draws.draw((rng.MUTATE, number, 1), (), "uniform", torch.float64).to(lr.device)
    if formula == "reference":
        changed = (lr + strength * (normal - 0.1) * first).clamp(min=0.0)
    else:
        changed = lr * torch.exp(strength * normal)
    lr.copy_(torch.where(u < probability, changed, lr))


def draw_losses_(state: State, draws: Streams, losses: int) -> None:
    """Set `set.loss` of each member to the number of a loss that is drawn at random from the first `losses` losses."""
    u = draws.draw((rng.MUTATE_LOSS,), (), "uniform", torch.float64)
    state["set.loss"].copy_(losses_from_uniform(u, losses))


def losses_from_uniform(uniform: Tensor, losses: int) -> Tensor:
    """Convert draws [N] in [0, 1) to integers [N] from 0 to losses - 1, which are equally probable."""
    return (uniform * losses).long().clamp(max=losses - 1)


def replay_loss_draws(base: np.ndarray, steps: range, losses: int, device: torch.device) -> Tensor:
    """Return the losses that `draw_losses_` draws at several steps, int64 [steps, n], without changing a state.

    Args:
        base: int64 [n] the members' base keys.
        steps: The steps.
        losses: The number of losses to draw from.
        device: The device on which the members train; CPU and GPU draws differ.

    >>> state = {"set.loss": torch.zeros(3, dtype=torch.int64)}
    >>> draw_losses_(state, Streams(np.arange(3), 5), 2)
    >>> replay_loss_draws(np.arange(3), range(4, 6), 2, torch.device("cpu"))[1].equal(state["set.loss"])
    True
    """
    host_keys = rng.keys(np.tile(base, len(steps)), np.repeat(np.array(steps, np.int64), len(base)), rng.MUTATE_LOSS)
    keys = torch.from_numpy(host_keys).to(device) if device.type == "cuda" else host_keys
    u = rng.draw(keys, (), "uniform", torch.float64)
    return losses_from_uniform(u, losses).view(len(steps), len(base))


def smoothing_factors(since: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return factors [N] of the learning rates lr_g and lr_d after a swap of partners between members.

    At first they make generators faster and discriminators slower; they approach 1, and are 1 after `length` steps.

    Args:
        since: [N] the number of steps since the swap.
        length: The number of steps after which both factors are 1.

    >>> g, d = smoothing_factors(torch.tensor([0, 1, 9]), 5)
    >>> [round(v, 2) for v in g.tolist()], [round(v, 2) for v in d.tolist()]
    ([1.23, 1.13, 1.0], [0.81, 0.88, 1.0])
    """
    s = since.to(torch.float64) + 1.0
    is_recent = (s >= 1) & (s <= length)
    one = torch.ones_like(s)
    return torch.where(is_recent, 1.0 + 0.3 / (s + 0.3), one), torch.where(is_recent, 1.0 - 0.3 / (s + 0.6), one)
