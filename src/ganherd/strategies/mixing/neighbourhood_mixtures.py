"""The mixture of every neighbourhood: its weights from iteration to iteration, and what comes of them at the end."""

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
from ganherd.strategies.mixing import mixing
from ganherd.strategies.mixing.mixer import Mixer
from ganherd.strategies.mixing.mixing import Summary


class NeighbourhoodMixtures:
    """One weight for the best generator of each cell of a neighbourhood; the individuals of a cell share its row."""

    def __init__(self, mixer: Mixer, cells: Cells, wiring: Wiring, widest: int, keeper: BestGenerators | None) -> None:
        self.mixer, self._cells, self.keeper, n = mixer, cells, keeper, len(cells.own)
        self.state: State = {
            "meet.weights": torch.zeros(n, widest, dtype=torch.float64),
            "meet.score": torch.full((n,), torch.inf, dtype=torch.float64),
            **(keeper.state if keeper else {}),
        }
        self.wire(wiring)

    def wire(self, wiring: Wiring) -> None:
        """New neighbourhoods: equal weights for all of them."""
        self._keep(mixing.uniform(torch.from_numpy(wiring.near)))

    def evolve(self, wiring: Wiring, iteration: int, generations: int, summary: Summary | None = None) -> np.ndarray:
        """Steps of the ES with the generators as they are now; (score before, after) of all cells [C, 2], as it is told."""
        summary = summary or self.mixer.summary(wiring, iteration)
        score = self.mixer.scores(summary)[self.mixer.settings.score]
        near = torch.from_numpy(wiring.near)
        found = self.mixer.evolved(self._sound(near, summary), near, score, iteration, generations)
        self._keep(found.weights)
        self.state["meet.score"].copy_(found.scores.repeat_interleave(self._cells.population))
        told = self.mixer.all_cells(found.history[[0, -1]].T)
        if self.keeper:
            after = told[:, 1].masked_fill(told[:, 1].isnan(), torch.inf)
            best = after.unflatten(0, (-1, len(wiring.topology))).min(1).values  # [R]
            self.keeper.offer(best, self.state["meet.weights"], iteration)
        return (self.mixer.sign * told).numpy()

    def neighbourhoods(self, wiring: Wiring, iteration: int) -> Neighbourhoods:
        """Of every cell of every replica, as it is at the end of a run; the best by the recipe's score, ties by the others."""
        settings, near = self.mixer.settings, torch.from_numpy(wiring.near)
        kept = self.keeper if self.keeper and iteration else None  # before the first iteration nothing is
        summary = self.mixer.summary(wiring, iteration, kept.generators() if kept else None)
        if settings.when == "end":
            self.wire(wiring)
            self.evolve(wiring, iteration, settings.generations, summary)
        weights = self._sound(near, summary, kept.weights if kept else None)
        found = {name: score(weights, near) for name, score in self.mixer.scores(summary).items()}
        unknown = torch.full((len(near),), torch.nan, dtype=torch.float64)
        scores = [found.get(name, unknown) for name in (*FIELDS, settings.score)]
        everyone = self.mixer.all_cells(torch.cat([weights, torch.stack(scores, 1)], 1))
        cells, out = len(wiring.topology), []
        for number, row in enumerate(everyone.tolist()):
            replica, cell = divmod(number, cells)
            members = [self._cells.population * other for other in wiring.topology.members(cell)]
            *values, value = (value if math.isfinite(value) else None for value in row[-len(FIELDS) - 1 :])
            own, of_each = row[: len(members)], dict(zip(FIELDS, values, strict=True))
            of_each["value"] = None if value is None or settings.score in FIELDS else self.mixer.sign * value
            out.append(Neighbourhood(replica=replica, cell=cell, members=members, weights=own, **of_each))

        def badness(one: Neighbourhood) -> list[float]:
            judged = None if (value := grid.judged(one)) is None else self.mixer.sign * value
            return [math.inf if value is None else value for value in (judged, one.fid, one.tvd, one.kid)]

        name, samples = self.mixer.network.name, settings.samples
        of = self.mixer.all_cells(kept.iteration[:: self._cells.population])[::cells].tolist() if kept else None
        grid = Neighbourhoods(by=settings.score, network=name, samples=samples, best=[0], all=out, iteration=of)
        best = [min(out[first : first + cells], key=badness).cell for first in range(0, len(out), cells)]
        return grid.model_copy(update={"best": best})

    def _sound(self, near: Tensor, summary: Summary, kept: Tensor | None = None) -> Tensor:
        """[C, s] the weights (of now, or those that were kept), less those of generators that are no numbers any more."""
        each = self.state["meet.weights"] if kept is None else kept
        weights = each[:: self._cells.population, : near.shape[1]]
        assert summary.mean is not None
        left = weights * torch.isfinite(summary.mean).all(1).cpu()[near]
        total = left.sum(1, keepdim=True)
        return torch.where(total > 0, left / total, weights)

    def _keep(self, weights: Tensor) -> None:
        kept = self.state["meet.weights"].zero_()
        kept[:, : weights.shape[1]] = weights.repeat_interleave(self._cells.population, 0)
