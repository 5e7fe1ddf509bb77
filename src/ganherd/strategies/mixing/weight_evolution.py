"""Evolve mixture weights by a (1+1)-ES, for many mixtures at once.

A (1+1)-ES is an evolution strategy with one parent and one child: a random change of the weights is accepted if it
improves the score. In shapes, M is the number of mixtures and s the number of entries (generators) of the largest one.
A smaller mixture is padded: its row of the table repeats the first entry, with weight 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.strategies.mixing.scorers import MixtureScorer


@dataclass(frozen=True)
class Evolved:
    """The weights of M mixtures after an evolution, and their scores."""

    weights: Tensor  # float64 [M, s], each row sums to 1
    history: Tensor  # float64 [generations + 1, M], the scores before the first step and after every step

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
    """Run a (1+1)-ES on M mixtures at once, and return the weights that it ends with and the course of the scores.

    A step adds Gaussian noise to the weights of each mixture, sets negative ones to 0 and divides by their sum. The new
    weights of a mixture are accepted if they cost strictly less.

    Args:
        weights: float64 [M, s], the weights to begin with.
        table: int64 [M, s], the generators of each mixture; padding keeps weight 0.
        score: The scorer of mixtures.
        sigma: The standard deviation of the noise.
        generations: The number of steps.
        draws: Function that takes the number of a step and returns standard normal numbers, float64 [M, s].
        cost: Function that turns scores into numbers to minimise; by default, these are the scores.
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
    """Return bool [M, s], False for entries of a table [M, s] that are padding: they repeat the first of their row.

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
