"""The mixture of every neighbourhood: evolve its weights over the iterations, and evaluate it at the end of a run.

The mixture of a neighbourhood contains the best generator of each of its cells, each with a weight. In shapes, C is the
number of this rank's cells, n of its members, and s of cells in the largest neighbourhood.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ganherd.herd.state import State
from ganherd.mixture.mixture_files import Neighbourhood, Neighbourhoods
from ganherd.recipe.mixture_scores import FIELDS
from ganherd.strategies.cellular.best_generators import BestGenerators
from ganherd.strategies.cellular.cells import Cells, Wiring
from ganherd.strategies.mixing.grid_scorer import GridScorer
from ganherd.strategies.mixing.scorers import Summary
from ganherd.strategies.mixing.weight_evolution import uniform


class NeighbourhoodMixtures:
    """The mixture weights of this rank's neighbourhoods, with a weight for the best generator of each cell.

    `state` has one row for each member; the rows of a cell's members are equal.
    """

    def __init__(
        self, scorer: GridScorer, cells: Cells, wiring: Wiring, widest: int, best_generators: BestGenerators | None
    ) -> None:
        """Begin with equal weights.

        Args:
            scorer: Scores mixtures.
            cells: The cells of this rank.
            wiring: The neighbourhoods.
            widest: The number of cells in the largest neighbourhood of all iterations.
            best_generators: Stores the generators of the best iteration; None if the recipe keeps those of the last
                one.
        """
        self.scorer, self._cells, self.best_generators, n = scorer, cells, best_generators, len(cells.own)
        self.state: State = {
            "meet.weights": torch.zeros(n, widest, dtype=torch.float64),
            "meet.score": torch.full((n,), torch.inf, dtype=torch.float64),
            **(best_generators.state if best_generators else {}),
        }
        self.wire(wiring)

    def wire(self, wiring: Wiring) -> None:
        """Reset all weights to equal ones, for new neighbourhoods."""
        self._store(uniform(torch.from_numpy(wiring.near)))

    def evolve(self, wiring: Wiring, iteration: int, generations: int, summary: Summary | None = None) -> np.ndarray:
        """Evolve the weights of all neighbourhoods for the current generators by a (1+1)-ES, an evolution strategy.

        If the recipe keeps the best iteration, offer it the current generators.

        Args:
            wiring: The neighbourhoods.
            iteration: The number of the iteration.
            generations: The number of steps of the ES.
            summary: Statistics of the generators; None computes them.

        Returns:
            The scores of the mixtures of all cells of the herd before and after, float64 [cells, 2].
        """
        summary = summary or self.scorer.summary(wiring, iteration)
        near = torch.from_numpy(wiring.near)
        score = self.scorer.scores(summary, near)[self.scorer.settings.score]
        evolved = self.scorer.evolve(self._finite_weights(near, summary), near, score, iteration, generations)
        self._store(evolved.weights)
        cost = self.scorer.metric.cost
        self.state["meet.score"].copy_(cost(evolved.scores).repeat_interleave(self._cells.rows))
        scores = self.scorer.all_cells(evolved.history[[0, -1]].T)
        if self.best_generators:
            after = cost(scores[:, 1]).masked_fill(scores[:, 1].isnan(), torch.inf)
            best = after.unflatten(0, (-1, len(wiring.topology))).min(1).values  # the best of each grid
            self.best_generators.offer(best, self.state["meet.weights"], iteration)
        return scores.numpy()

    def neighbourhoods(self, wiring: Wiring, iteration: int) -> Neighbourhoods:
        """Return the mixtures of all cells of all replicas with their scores at the end of a run, and which are best.

        The best mixture of a grid is that with the best score of the recipe; ties are broken by FID, TVD and KID. If
        the recipe evolves weights only at the end, this does so first.
        """
        settings, near = self.scorer.settings, torch.from_numpy(wiring.near)
        # None before the first iteration.
        stored = self.best_generators if self.best_generators and iteration else None
        summary = self.scorer.summary(wiring, iteration, stored.generators() if stored else None)
        if settings.when == "end":
            self.wire(wiring)
            self.evolve(wiring, iteration, settings.generations, summary)
        weights = self._finite_weights(near, summary, stored.weights if stored else None)
        scores = {name: score(weights, near) for name, score in self.scorer.scores(summary, near).items()}
        unknown = torch.full((len(near),), torch.nan, dtype=torch.float64)
        columns = [scores.get(name, unknown) for name in (*FIELDS, settings.score)]
        rows = self.scorer.all_cells(torch.cat([weights, torch.stack(columns, 1)], 1))
        cells = len(wiring.topology)
        mixtures = [self._neighbourhood(wiring, number, row) for number, row in enumerate(rows.tolist())]
        iterations = None
        if stored:
            iterations = self.scorer.all_cells(stored.iteration[:: self._cells.rows])[::cells].tolist()
        grid = Neighbourhoods(
            by=settings.score,
            network=self.scorer.network.name,
            samples=settings.samples,
            best=[0],
            all=mixtures,
            iteration=iterations,
            classes=self.scorer.classes,
        )

        def badness(one: Neighbourhood) -> list[float]:
            score = None if (value := grid.judged(one)) is None else self.scorer.metric.cost(value)
            return [math.inf if value is None else value for value in (score, one.fid, one.tvd, one.kid)]

        best = [min(mixtures[first : first + cells], key=badness).cell for first in range(0, len(mixtures), cells)]
        return grid.model_copy(update={"best": best})

    def _neighbourhood(self, wiring: Wiring, number: int, row: list[float]) -> Neighbourhood:
        """Return the mixture of one cell.

        Args:
            wiring: The neighbourhoods.
            number: The number of the cell over all replicas.
            row: The weights of the mixture (padded), its scores in the order of `FIELDS`, and the recipe's score.
        """
        cells = len(wiring.topology)
        replica, cell = divmod(number, cells * self.scorer.classes)
        first = cell - cell % cells  # of its class
        members = [self._cells.rows * (first + other) for other in wiring.topology.members(cell % cells)]
        *values, value = (value if math.isfinite(value) else None for value in row[-len(FIELDS) - 1 :])
        scores = dict(zip(FIELDS, values, strict=True))
        scores["value"] = None if self.scorer.settings.score in FIELDS else value
        return Neighbourhood(replica=replica, cell=cell, members=members, weights=row[: len(members)], **scores)

    def _finite_weights(self, near: Tensor, summary: Summary, stored: Tensor | None = None) -> Tensor:
        """Return the weights of each cell's mixture [C, s], with 0 for generators whose features are not finite.

        The other weights of a mixture are scaled so that their sum is 1. If no generator is left, weights do not
        change.

        Args:
            near: int64 [C, s], the generators of each mixture, as rows of the summary.
            summary: Statistics of the generators.
            stored: Weights [n, s] to use, one row for each member; None: the current ones.
        """
        by_member = self.state["meet.weights"] if stored is None else stored
        weights = by_member[:: self._cells.rows, : near.shape[1]]
        left = weights * torch.isfinite(summary.mean).all(1).cpu()[near]
        total = left.sum(1, keepdim=True)
        return torch.where(total > 0, left / total, weights)

    def _store(self, weights: Tensor) -> None:
        """Write the weights of cells [C, s] into the state."""
        stored = self.state["meet.weights"].zero_()
        stored[:, : weights.shape[1]] = weights.repeat_interleave(self._cells.rows, 0)
