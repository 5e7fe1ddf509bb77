"""Who is cloned and who gives way: the decisions of one iteration, as arithmetic on the fitness of all cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def winners(fitness: np.ndarray, able: np.ndarray, u: np.ndarray, size: int) -> np.ndarray:
    """int64 [C, p]: which column of its sub-population [C, S] won each of a cell's p tournaments; -1: nobody was able to.

    A tournament's `size` entrants are drawn without replacement among those that are `able` [C, S]: those with the smallest
    u [C, p, S]. The lowest fitness wins; of equal ones, the first drawn.

    >>> fitness, able = np.array([[3.0, 1.0, 2.0]]), np.array([[True, True, True]])
    >>> u = np.array([[[0.1, 0.9, 0.2], [0.8, 0.7, 0.9]]])
    >>> winners(fitness, able, u, 2).tolist(), winners(fitness, able, u, 3).tolist()
    ([[2, 1]], [[1, 1]])
    """
    drawn = np.argsort(np.where(able[:, None, :], u, np.inf), axis=2, kind="stable")[:, :, :size]  # [C, p, t]
    cell = np.arange(len(fitness))[:, None, None]
    known = able[cell, drawn]
    of = np.where(known, np.where(np.isnan(fitness), np.inf, fitness)[cell, drawn], np.inf)
    # one that is able comes before one that is not, also where its fitness is infinite
    best = np.lexsort((np.broadcast_to(np.arange(drawn.shape[2]), of.shape), of, ~known), axis=2)[:, :, :1]
    column = np.take_along_axis(drawn, best, 2)[:, :, 0]
    return np.where(known.any(2), column, -1)


@dataclass(frozen=True)
class SelectedIndividuals:
    """The p individuals of each cell after a replacement, the best first."""

    trained: np.ndarray  # bool [C, p]: one of those that were trained, or one of the old
    source: np.ndarray  # int64 [C, p]: the place that it had among them
    fitness: np.ndarray  # float64 [C, p]


def survivors(old: np.ndarray, trained: np.ndarray, most: int) -> SelectedIndividuals:
    """The i-th worst of the old gives way to the i-th best of the trained where that is strictly better, for i < `most`.

    >>> found = survivors(np.array([[1.0, 5.0, 3.0]]), np.array([[4.0, 2.0, 9.0]]), most=2)
    >>> found.fitness.tolist(), found.trained.tolist(), found.source.tolist()
    ([[1.0, 2.0, 3.0]], [[False, True, False]], [[0, 1, 2]])
    """
    cells, p = old.shape
    at = np.arange(cells)
    best_old, best_new = np.argsort(old, 1, kind="stable"), np.argsort(trained, 1, kind="stable")
    is_new, source, fitness = np.zeros((cells, p), bool), np.tile(np.arange(p), (cells, 1)), old.copy()
    for i in range(min(most, p)):
        worst, candidate = best_old[:, p - 1 - i], best_new[:, i]
        better = trained[at, candidate] < old[at, worst]
        rows, columns = at[better], worst[better]
        is_new[rows, columns], source[rows, columns] = True, candidate[better]
        fitness[rows, columns] = trained[at, candidate][better]
    order = np.argsort(fitness, 1, kind="stable")
    return SelectedIndividuals(*(np.take_along_axis(each, order, 1) for each in (is_new, source, fitness)))


def ranked(fitness: np.ndarray) -> SelectedIndividuals:
    """All of the trained, the best first: where nobody is selected."""
    order = np.argsort(fitness, 1, kind="stable")
    return SelectedIndividuals(np.ones(order.shape, bool), order, np.take_along_axis(fitness, order, 1))
