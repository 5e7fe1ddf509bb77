"""Call the strategy where members meet, and where ranks that ran apart meet again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.strategies.strategy import Strategy
from ganherd.training.callbacks import Callback
from ganherd.training.ranks.rank_sync import RankSync
from ganherd.training.schedule import Schedule

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Meetings(Callback):
    """Close a meeting on arrival at its step, before a checkpoint may be saved, and open it before the loop trains on."""

    def __init__(self, strategy: Strategy, schedule: Schedule, sync: RankSync) -> None:
        self._strategy, self._schedule, self._sync = strategy, schedule, sync

    def on_departure(self, trainer: Trainer) -> None:
        self._sync.part(trainer.step, self._schedule.last)
        if trainer.step == 0 or self._schedule.meets_at(trainer.step):
            trainer.record_events(self._strategy.open(trainer.step))

    def on_stop(self, trainer: Trainer) -> None:
        step = trainer.step
        if self._schedule.meets_at(step):
            trainer.record_events(self._strategy.close(step, continues=step < self._schedule.last))
        if self._strategy.max_unsynced_steps and self._sync.at(step):
            trainer.record_events(self._strategy.end_unsynced(step))
