"""Some members of a herd trained by themselves: their rows lie together in a state of their own, so the others cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ganherd.herd.engine.engines import Engine, Herd, Plan, make_engine, never, place
from ganherd.herd.state import members_of


class SubsetEngine:
    """An engine for these rows of a herd; between its calls their state is the herd's, whatever was done to it there."""

    def __init__(self, herd: Herd, plan: Plan, rows: Sequence[int]) -> None:
        """For herds whose members meet nobody and all make the same step."""
        assert herd.rivals is None and not herd.pace
        own = list(rows)
        self._herd, self._rows = herd, torch.tensor(own, device=herd.state["set.seed"].device)
        self._part: Herd | None = None
        if plan.one_by_one or not own:  # one by one, where they lie
            self._engine = Engine(herd, plan, own)
            return
        self._part = replace(herd, state=members_of(herd.state, own), feed=herd.feed.only(own))
        place(self._part, plan)
        self._engine = make_engine(self._part, plan)

    def advance(
        self,
        start: int,
        stop: int,
        sums: Tensor,
        asked_to_stop: Callable[[], bool] = never,
        tick: Callable[[int], None] | None = None,
    ) -> int:
        """As that of the whole herd's engine; sums [4, N] of the others stay as they are."""
        if self._part is None:
            return self._engine.advance(start, stop, sums, asked_to_stop, tick)
        own = self._part.no_sums()
        own.copy_(sums[:, self._rows])
        for name, value in self._part.state.items():
            value.copy_(self._herd.state[name][self._rows])
        step = self._engine.advance(start, stop, own, asked_to_stop, tick)
        for name, value in self._part.state.items():
            whole = self._herd.state[name]
            whole.index_copy_(0, self._rows, value.to(whole.device))
        sums.index_copy_(1, self._rows, own.to(sums.device))
        return step

    def close(self) -> None:
        if self._part is not None:
            self._part.feed.close()
