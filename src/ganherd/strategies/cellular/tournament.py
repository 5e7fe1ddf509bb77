"""Tournament selection and replacement, as arithmetic on the fitness of all cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def winners(fitness: np.ndarray, able: np.ndarray, u: np.ndarray, entrants: int) -> np.ndarray:
    """Return the winners of p tournaments in each cell as columns of its sub-population, int64 [C, p]; -1: no winner.

    The lowest fitness wins; among equal ones, the first drawn.

    Args:
        fitness: float64 [C, S], of the individuals in each sub-population; less is better.
        able: bool [C, S], the individuals that may enter.
        u: Uniform random numbers [C, p, S]; the able individuals with the smallest ones enter a tournament.
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
    # An able individual precedes one that is not, even if its fitness is infinite.
    best = np.lexsort((order, drawn_fitness, ~known), axis=2)[:, :, :1]
    column = np.take_along_axis(drawn, best, 2)[:, :, 0]
    return np.where(known.any(2), column, -1)


@dataclass(frozen=True)
class SelectedIndividuals:
    """The p individuals of each cell after a replacement, the best first."""

    trained: np.ndarray  # bool [C, p]: True for a trained individual, False for an old one
    source: np.ndarray  # int64 [C, p]: its position among the trained or the old ones
    fitness: np.ndarray  # float64 [C, p]


def survivors(
    old: np.ndarray, trained: np.ndarray, most: int, expired: np.ndarray | None = None
) -> SelectedIndividuals:
    """Replace the i-th worst old individual by the i-th best trained one if that is strictly better, for i < `most`.

    Args:
        old: Fitness of the old individuals [C, p].
        trained: Fitness of the trained ones [C, λ], at least as many.
        most: The largest number of replacements in a cell.
        expired: bool [C, p], old individuals that give way first, to any trained one whose fitness is finite.

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
    """Return the p individuals of each cell, followed by its other members, which stay as they were trained [C, λ]."""
    (cells, p), rows = selected.fitness.shape, trained.shape[1]
    return SelectedIndividuals(
        np.concatenate([selected.trained, np.ones((cells, rows - p), bool)], 1),
        np.concatenate([selected.source, np.tile(np.arange(p, rows), (cells, 1))], 1),
        np.concatenate([selected.fitness, trained[:, p:]], 1),
    )


def ranked(fitness: np.ndarray) -> SelectedIndividuals:
    """Return all trained individuals, the best first; for runs without selection."""
    order = np.argsort(fitness, 1, kind="stable")
    return SelectedIndividuals(np.ones(order.shape, bool), order, np.take_along_axis(fitness, order, 1))
