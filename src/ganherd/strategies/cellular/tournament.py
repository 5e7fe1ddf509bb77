"""Tournament selection and replacement for all cells at once, as pure functions of fitness arrays.

These functions only decide. The nets are copied by their callers in the module `cellular`: `Cellular._select` calls
`winners` when an iteration begins, and `Cellular._replace` calls `survivors` and `with_offspring` (or `ranked`) when it
ends.

In shapes, C is the number of cells, p of individuals in a cell (the nets that it keeps), λ ≥ p of nets that it trains
in an iteration, and S of individuals in the largest sub-population. The sub-population of a cell is all individuals of
its neighbourhood, its own included. Less fitness is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def winners(fitness: np.ndarray, able: np.ndarray, u: np.ndarray, entrants: int) -> np.ndarray:
    """Hold p tournaments in each cell, and return the winners as columns of `fitness`, int64 [C, p]; -1 for no winner.

    Here p is one for each net that the cell trains. The individual with the lowest fitness wins; of equal ones, the
    first drawn. A tournament has no winner if no individual of the sub-population may enter.

    Args:
        fitness: float64 [C, S], the fitness of the individuals in each sub-population.
        able: bool [C, S], True for individuals that may enter.
        u: Uniform random numbers [C, p, S]. For each tournament, the able individuals with the smallest numbers enter.
        entrants: The number of individuals in a tournament, drawn without replacement.

    >>> fitness, able = np.array([[3.0, 1.0, 2.0]]), np.array([[True, True, True]])
    >>> u = np.array([[[0.1, 0.9, 0.2], [0.8, 0.7, 0.9]]])
    >>> winners(fitness, able, u, 2).tolist(), winners(fitness, able, u, 3).tolist()
    ([[2, 1]], [[1, 1]])
    """
    drawn = np.argsort(np.where(able[:, None, :], u, np.inf), axis=2, kind="stable")[:, :, :entrants]  # [C, p, t]
    cell = np.arange(len(fitness))[:, None, None]
    known = able[cell, drawn]
    drawn_fitness = np.where(known, np.where(np.isnan(fitness), np.inf, fitness)[cell, drawn], np.inf)
    order = np.broadcast_to(np.arange(drawn.shape[2]), drawn_fitness.shape)
    # An individual that may enter beats one that may not, even if its fitness is infinite.
    best = np.lexsort((order, drawn_fitness, ~known), axis=2)[:, :, :1]
    column = np.take_along_axis(drawn, best, 2)[:, :, 0]
    return np.where(known.any(2), column, -1)


@dataclass(frozen=True)
class SelectedIndividuals:
    """The nets that each cell continues with after an iteration; its p individuals are sorted, the best first."""

    trained: np.ndarray  # bool [C, p]: True for a net trained in this iteration, False for an old one
    source: np.ndarray  # int64 [C, p]: the net's position among the trained or the old ones of its cell
    fitness: np.ndarray  # float64 [C, p]


def survivors(
    old: np.ndarray, trained: np.ndarray, most: int, expired: np.ndarray | None = None
) -> SelectedIndividuals:
    """Return the p individuals that each cell continues with, chosen from its old and its trained ones, the best first.

    For i < `most`, the i-th worst old individual of a cell is replaced by its i-th best trained one if that is strictly
    better.

    Args:
        old: Fitness of the old individuals, float64 [C, p].
        trained: Fitness of the trained ones, float64 [C, λ].
        most: The largest number of replacements in a cell.
        expired: bool [C, p], True for old individuals that count as the worst: any trained one of finite fitness
            replaces them.

    >>> selected = survivors(np.array([[1.0, 5.0, 3.0]]), np.array([[4.0, 2.0, 9.0]]), most=2)
    >>> selected.fitness.tolist(), selected.trained.tolist(), selected.source.tolist()
    ([[1.0, 2.0, 3.0]], [[False, True, False]], [[0, 1, 2]])
    >>> survivors(np.array([[1.0]]), np.array([[4.0, 2.0]]), most=1, expired=np.array([[True]])).fitness.tolist()
    [[2.0]]
    """
    cells, p = old.shape
    at = np.arange(cells)
    rank = old if expired is None else np.where(expired, np.inf, old)
    best_old, best_new = np.argsort(rank, 1, kind="stable"), np.argsort(trained, 1, kind="stable")
    is_new, source, fitness = np.zeros((cells, p), bool), np.tile(np.arange(p), (cells, 1)), old.copy()
    for i in range(min(most, p)):
        worst, candidate = best_old[:, p - 1 - i], best_new[:, i]
        better = trained[at, candidate] < rank[at, worst]
        rows, columns = at[better], worst[better]
        is_new[rows, columns], source[rows, columns] = True, candidate[better]
        fitness[rows, columns] = trained[at, candidate][better]
    order = np.argsort(fitness, 1, kind="stable")
    return SelectedIndividuals(*(np.take_along_axis(each, order, 1) for each in (is_new, source, fitness)))


def with_offspring(selected: SelectedIndividuals, trained: np.ndarray) -> SelectedIndividuals:
    """Return all λ nets of each cell: its p selected individuals, then its members p to λ - 1, the further offspring.

    Further offspring stay as they were trained until the next iteration overwrites them.

    Args:
        selected: The individuals that survive [C, p].
        trained: The fitness of all trained nets, float64 [C, λ].
    """
    (cells, p), rows = selected.fitness.shape, trained.shape[1]
    return SelectedIndividuals(
        np.concatenate([selected.trained, np.ones((cells, rows - p), bool)], 1),
        np.concatenate([selected.source, np.tile(np.arange(p, rows), (cells, 1))], 1),
        np.concatenate([selected.fitness, trained[:, p:]], 1),
    )


def ranked(fitness: np.ndarray) -> SelectedIndividuals:
    """Return all trained nets of each cell, the best first, for runs without selection; `fitness` is float64 [C, p]."""
    order = np.argsort(fitness, 1, kind="stable")
    return SelectedIndividuals(np.ones(order.shape, bool), order, np.take_along_axis(fitness, order, 1))
