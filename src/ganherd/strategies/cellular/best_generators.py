"""Store the generators of the iteration with the best mixture, for recipes with `mixing.keep: best`.

A replica is one of several independent copies of the herd, trained with different seeds; each has its own best
iteration.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import State

_BEST = "meet.best."
_BUFFERS = "g.buffers."


class BestGenerators:
    """Copies of the generators from the iteration whose mixture scored best so far, for each replica of the herd.

    `state` has one row for each member of this rank. It is saved in checkpoints and distributed over ranks with the
    herd.
    """

    def __init__(self, herd: StackedHerd, replica: np.ndarray, widest: int) -> None:
        """Allocate the state.

        Args:
            herd: The herd of this rank.
            replica: int64 [n], the number of the replica that each of this rank's members belongs to.
            widest: The number of cells in the largest neighbourhood.
        """
        self._herd, self._replica, n = herd, torch.from_numpy(replica), len(replica)
        self.state: State = {
            _BEST + "score": torch.full((n,), torch.inf, dtype=torch.float64),
            _BEST + "iteration": torch.full((n,), -1, dtype=torch.int64),
            _BEST + "weights": torch.zeros(n, widest, dtype=torch.float64),
            **{_BEST + name: torch.zeros_like(value) for name, value in self._current().items()},
        }

    def offer(self, scores: Tensor, weights: Tensor, iteration: int) -> None:
        """Store the current generators of each replica whose score is better (lower) than its best stored one.

        While a replica has had no finite score, its current generators are always stored.

        Args:
            scores: float64 [R], the score of each replica's best neighbourhood after the iteration; less is better.
            weights: float64 [n, s], for each of this rank's members the mixture weights of its neighbourhood of s
                cells.
            iteration: The number of the iteration.
        """
        score, best = scores[self._replica], self.state[_BEST + "score"]
        rows = ((score < best) | (best == torch.inf)).nonzero().flatten()
        self.state[_BEST + "score"][rows] = score[rows]
        self.state[_BEST + "iteration"][rows] = iteration
        self.state[_BEST + "weights"][rows] = weights[rows]
        for name, value in self._current().items():
            stored = self.state[_BEST + name]
            stored[rows.to(stored.device)] = value[rows.to(stored.device)]

    @property
    def iteration(self) -> Tensor:
        """Return the iteration of each member's stored generator, int64 [n]; -1: none is stored yet."""
        return self.state[_BEST + "iteration"]

    @property
    def weights(self) -> Tensor:
        """Return the mixture weights that were stored with the generators, float64 [n, s]."""
        return self.state[_BEST + "weights"]

    def generators(self) -> State:
        """Return the stored generators' parameters and buffers, under the names that the herd's state uses."""
        return {name: self.state[_BEST + name] for name in self._current()}

    def _current(self) -> State:
        """Return the current generators as a mixture would use them: their running average, if there is one."""
        state = self._herd.state
        buffers = {name: value for name, value in state.items() if name.startswith(_BUFFERS)}
        return {"g.params": state.get("g.ema", state["g.params"]), **buffers}
