"""Heartbeats: each rank of a job regularly writes its step and its rate into the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.comm import heartbeat
from ganherd.comm.handshake import machine
from ganherd.comm.heartbeat import Heartbeat
from ganherd.comm.ranks import Ranks
from ganherd.training.callbacks import Callback

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


def heartbeat_of(ranks: Ranks, path: Path, trainer: Trainer | None = None) -> Heartbeat:
    """Return the heartbeat of this rank, which is written while its context is entered.

    Args:
        path: The run's folder.
        trainer: If given, the heartbeat of the first rank also reports ranks without recent heartbeats, as events.
    """
    heart = Heartbeat(
        path / "ranks", ranks.job.rank, ranks.job.world_size, ranks.local_members, ranks.comm or ranks.job
    )
    heart.note("processing" if ranks.local_members else None, **machine())
    if trainer is not None and ranks.is_first:

        def report(event: str, facts: Mapping[str, Any]) -> None:
            trainer.event(event, **facts)
            trainer.progress.say(heartbeat.describe(event, facts))

        heart.listener = heartbeat.MissingRanks(path / "ranks", ranks.job.rank, ranks.job.world_size, report).look
    return heart


class HeartbeatNotes(Callback):
    """Write the step, the rate and the traffic of this rank into its heartbeat."""

    def __init__(self, heart: Heartbeat) -> None:
        self._heart = heart

    def on_step_end(self, trainer: Trainer, step: int) -> None:
        self._heart.note(step=step, rate=round(trainer.progress.rate * trainer.state.tally.per_step_here, 1))

    def on_stop_end(self, trainer: Trainer, step_seconds: float) -> None:
        before = self._heart.now.step_seconds or step_seconds
        mean = round(0.8 * before + 0.2 * step_seconds, 6)
        self._heart.note(step_seconds=mean, **vars(trainer.strategy.traffic))
