"""Add shared layers to any strategy: both act on the same herd, each at its own steps.

At a step where both are due, the strategy comes first: nets that it has sent ahead are those of the members as they were, and
averaging them afterwards gives every rank the same result. On a grid with selection, a cell's snapshot therefore holds nets from
before the averaging: like all training, it stays only if it makes the nets of the cell better.
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
    """Let members meet by a strategy, and average some of their layers from time to time. Only the strategy has state."""

    def __init__(self, name: str, strategy: Strategy, share: Share) -> None:
        super().__init__()
        if strategy.max_unsynced_steps:
            raise UserError(
                f"strategy.share averages layers at steps that all ranks reach together, and with strategy.{name} async they do "
                "not: leave strategy.share out, or set exchange to sync."
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
