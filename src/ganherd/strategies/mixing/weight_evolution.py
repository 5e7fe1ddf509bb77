"""Evolve mixture weights by a (1+1)-ES: many mixtures at once, each by its own score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.strategies.mixing.scorers import MixtureScorer


@dataclass(frozen=True)
class Evolved:
    """The weights of M mixtures after an evolution, and their scores."""

    weights: Tensor  # float64 [M, s], sums to 1
    history: Tensor  # float64 [generations + 1, M], the scores before the first and after every generation

    @property
    def scores(self) -> Tensor:
        """Return the final scores [M]."""
        return self.history[-1]


def evolve(
    weights: Tensor,
    table: Tensor,
    score: MixtureScorer,
    sigma: float,
    generations: int,
    draws: Callable[[int], Tensor],
    cost: Callable[[Tensor], Tensor] = torch.clone,
) -> Evolved:
    """Run a (1+1)-ES on all M mixtures at once: w' = clip(w + N(0, σ²), 0, ∞) / sum replaces w if it costs strictly less.

    Args:
        weights: The first weights [M, s].
        table: The generators of each mixture [M, s]; padding keeps weight 0.
        score: The score of mixtures.
        sigma: The standard deviation σ of a step.
        generations: The number of steps.
        draws: Returns standard normal numbers, float64 [M, s], for a generation.
        cost: Returns a number to minimise for each score; by default, the score itself.
    """
    real = entries(table)
    history = [score(weights, table)]
    for generation in range(generations):
        moved = (weights + sigma * draws(generation)).clamp(min=0) * real
        total = moved.sum(1, keepdim=True)
        moved = torch.where(total > 0, moved / total, weights)
        scores = score(moved, table)
        better = cost(scores) < cost(history[-1])  # False for NaN.
        weights = torch.where(better[:, None], moved, weights)
        history.append(torch.where(better, scores, history[-1]))
    return Evolved(weights, torch.stack(history))


def entries(table: Tensor) -> Tensor:
    """Return bool [M, s], False for entries of a table that are padding, which repeats the first entry.

    >>> entries(torch.tensor([[0, 1, 2], [1, 0, 1]])).tolist()
    [[True, True, True], [True, True, False]]
    """
    real = table != table[:, :1]
    real[:, 0] = True
    return real


def uniform(table: Tensor) -> Tensor:
    """Return equal weights for the generators of each mixture, float64 [M, s].

    >>> uniform(torch.tensor([[0, 1, 2, 3], [1, 0, 1, 1]])).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]
    """
    real = entries(table).double()
    return real / real.sum(1, keepdim=True)
