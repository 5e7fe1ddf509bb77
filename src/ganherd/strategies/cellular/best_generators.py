"""The generators of the iteration whose mixture was best: what a run ends with, where its recipe wants that."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ganherd.herd.engine.engines import Herd
from ganherd.herd.state import State

_BEST = "meet.best."
_BUFFERS = "g.buffers."


class BestGenerators:
    """Row by row as the herd's state, so that it is saved, resumed and spread over ranks like everything else."""

    def __init__(self, herd: Herd, replica: np.ndarray, widest: int) -> None:
        """`replica` [n]: of each of this rank's members."""
        self._herd, self._replica, n = herd, torch.from_numpy(replica), len(replica)
        self.state: State = {
            _BEST + "score": torch.full((n,), torch.inf, dtype=torch.float64),
            _BEST + "iteration": torch.full((n,), -1, dtype=torch.int64),
            _BEST + "weights": torch.zeros(n, widest, dtype=torch.float64),
            **{_BEST + name: torch.zeros_like(value) for name, value in self._now().items()},
        }

    def offer(self, scores: Tensor, weights: Tensor, iteration: int) -> None:
        """The best score of each replica [R] and the weights [n, s] after an iteration: kept where it is the best so far.

        As long as no iteration has a finite score, the newest is kept."""
        own, best = scores[self._replica], self.state[_BEST + "score"]
        rows = ((own < best) | (best == torch.inf)).nonzero().flatten()
        self.state[_BEST + "score"][rows] = own[rows]
        self.state[_BEST + "iteration"][rows] = iteration
        self.state[_BEST + "weights"][rows] = weights[rows]
        for name, value in self._now().items():
            kept = self.state[_BEST + name]
            kept[rows.to(kept.device)] = value[rows.to(kept.device)]

    @property
    def iteration(self) -> Tensor:
        """int64 [n]; -1: nothing is kept yet."""
        return self.state[_BEST + "iteration"]

    @property
    def weights(self) -> Tensor:
        return self.state[_BEST + "weights"]

    def generators(self) -> State:
        """Parameters and buffers, under the names of the herd's state."""
        names = self._now()
        return {name: self.state[_BEST + name] for name in names}

    def _now(self) -> State:
        """The generators as a mixture would have them: their running average, where there is one."""
        state = self._herd.state
        buffers = {name: value for name, value in state.items() if name.startswith(_BUFFERS)}
        return {"g.params": state.get("g.ema", state["g.params"]), **buffers}
