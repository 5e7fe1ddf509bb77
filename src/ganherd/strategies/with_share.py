"""Add the averaging of shared layers (`strategy.share`) to any other strategy, each at its own steps.

If both are due at a step, the strategy acts first. It may have started to send nets before this step, so they must be
those from before the averaging. On a grid with selection, the snapshot of a cell therefore holds nets from before the
averaging too: its effect is judged like that of training, and lasts only if it makes the nets of the cell better.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ganherd.herd.state import State
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.strategies.share import Share
from ganherd.strategies.strategy import Event, Facts, Strategy
from ganherd.util.errors import UserError


class WithShare(Strategy):
    """Run a strategy, and average some layers of the members in addition (`Share`). Only the strategy has state."""

    def __init__(self, name: str, strategy: Strategy, share: Share) -> None:
        super().__init__()
        if strategy.max_unsynced_steps:
            raise UserError(
                f"strategy.share averages layers at steps that all ranks reach together, and with strategy.{name} async they do "
                "not: leave strategy.share out, or set exchange to sync and no replay."
            )
        self.strategy, self.share = strategy, share
        self.state, self.traffic = strategy.state, strategy.traffic

    def next_after(self, step: int) -> int | None:
        steps = [self.strategy.next_after(step), self.share.next_after(step)]
        return min((each for each in steps if each is not None), default=None)

    def on_health_check(self, step: int, finite: np.ndarray | None) -> None:
        self.strategy.on_health_check(step, finite)

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        if self.strategy.meets_at(step):
            yield from self.strategy.close(step, continues)

    def on_interrupt(self) -> None:
        self.strategy.on_interrupt()

    def open(self, step: int) -> Iterator[Event]:
        if step == 0 or self.strategy.meets_at(step):
            yield from self.strategy.open(step)
        yield from self.share.open(step)

    def resume(self, step: int) -> None:
        self.strategy.resume(step)

    def poll(self) -> None:
        self.strategy.poll()

    def on_steps_done(self, seconds: float, step: int) -> None:
        self.strategy.on_steps_done(seconds, step)

    def neighbourhoods(self, step: int) -> Neighbourhoods | None:
        return self.strategy.neighbourhoods(step)

    def generators(self) -> State | None:
        return self.strategy.generators()

    def metrics(self) -> Facts:
        return self.strategy.metrics()
