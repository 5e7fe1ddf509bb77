"""Train only some members (GANs) of a herd, on a copy of their state, so that the other members take no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ganherd.herd.engine.engines import (
    CompileReport,
    Engine,
    Plan,
    StackedHerd,
    StopCheck,
    Tick,
    make_engine,
    never,
    no_report,
    no_tick,
    place_state,
)
from ganherd.herd.state import members_of


class SubsetEngine:
    """An engine for some members of a herd. `advance` copies their state from the herd, and the result back to it."""

    def __init__(self, herd: StackedHerd, plan: Plan, rows: Sequence[int]) -> None:
        """Prepare the training of some members. The herd must have neither frozen opponents nor paces.

        Args:
            rows: The members, as rows of the herd's state.
        """
        assert herd.opponents is None and not herd.pace
        members = list(rows)
        self._herd, self._rows = herd, torch.tensor(members, device=herd.state["set.seed"].device)
        self._subset: StackedHerd | None = None
        if plan.one_by_one or not members:  # members train one by one, so no copy is needed
            self._engine = Engine(herd, plan, members)
            return
        self._subset = replace(herd, state=members_of(herd.state, members), feed=herd.feed.select(members))
        place_state(self._subset, plan)
        self._engine = make_engine(self._subset, plan)

    def prepare(self, report: CompileReport = no_report) -> None:
        """Compile the kernels of a step; see `Engine.prepare`."""
        self._engine.prepare(report)

    def advance(self, start: int, stop: int, sums: Tensor, should_stop: StopCheck = never, tick: Tick = no_tick) -> int:
        """Train these members as `Engine.advance` does; in `sums` [4, N] the columns of other members do not change."""
        if self._subset is None:
            return self._engine.advance(start, stop, sums, should_stop, tick)
        subset_sums = self._subset.zero_sums()
        subset_sums.copy_(sums[:, self._rows])
        for name, value in self._subset.state.items():
            value.copy_(self._herd.state[name][self._rows])
        step = self._engine.advance(start, stop, subset_sums, should_stop, tick)
        for name, value in self._subset.state.items():
            whole = self._herd.state[name]
            whole.index_copy_(0, self._rows, value.to(whole.device))
        sums.index_copy_(1, self._rows, subset_sums.to(sums.device))
        return step

    def close(self) -> None:
        """Release the resources of the feed that serves these members."""
        if self._subset is not None:
            self._subset.feed.close()
