"""Detect silent ranks: rank 0 reads the heartbeats of the others and reports each that is late, and each that returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganherd.comm.liveness import heartbeat

_AT_ONCE = 64  # files read with each beat; with more ranks each file is read less often
Report = Callable[[str, Mapping[str, Any]], None]  # takes an event, `late` or `back`, and its facts


class MissingRanks:
    """Report ranks that are late by the rule of `ganherd status`. Heartbeats of an earlier job on the run are ignored."""

    def __init__(self, folder: Path, rank: int, world_size: int, report: Report) -> None:
        """Watch the heartbeats of a run.

        Args:
            folder: The run's `ranks/`.
            rank: This rank, which is not watched.
            world_size: The number of ranks.
            report: Called with each event.
        """
        self._folder, self._rank, self._report = folder, rank, report
        self._every, self._turn = -(-world_size // _AT_ONCE), 0  # beats between two checks
        self._since = self._last_check = time.time()  # Silence before this time does not count.
        self._missing: dict[int, float] = {}  # rank -> time of its last heartbeat

    def look(self, period: float) -> None:
        """Check the other ranks; called with every beat of this rank, each `period` seconds."""
        self._turn += 1
        if self._turn % self._every:
            return
        now = time.time()
        if now - self._last_check > (heartbeat.LATE + self._every) * period:
            self._since = now  # This rank was suspended itself.
        self._last_check = now
        for beat in heartbeat.read(self._folder):
            if beat.rank == self._rank or (beat.state == "finished" and beat.time < self._since):
                continue
            self._check(beat, now)

    def _check(self, beat: heartbeat.Beat, now: float) -> None:
        """Report if a rank has become late, or has returned."""
        last_beat = max(beat.time, self._since)
        is_silent = replace(beat, time=last_beat).health(now) in ("late", "lost")
        facts: dict[str, Any] = {"rank": beat.rank, "host": beat.host, "members": list(beat.members)}
        if is_silent and beat.rank not in self._missing:
            self._missing[beat.rank] = last_beat
            self._report("late", {**facts, "since": round(last_beat, 3), "at": beat.step})
        elif not is_silent and beat.rank in self._missing:
            seconds = beat.time - self._missing.pop(beat.rank)
            self._report("back", {**facts, "seconds": round(max(0.0, seconds), 1), "at": beat.step})


def describe(event: str, facts: Mapping[str, Any]) -> str:
    """Return a line of the log for an event of `MissingRanks`.

    >>> describe("back", {"rank": 1, "host": "n7", "seconds": 41.3, "at": 1200})
    'rank 1 on n7 is back: nothing was heard of it for 41 s'
    """
    name = f"rank {facts['rank']} on {facts['host']}"
    if event == "back":
        return f"{name} is back: nothing was heard of it for {facts['seconds']:.0f} s"
    when = time.strftime("%H:%M:%S", time.localtime(facts["since"]))
    return f"{name} is late: nothing was heard of it since {when}, when it was at step {facts['at']:,}; the others wait for it"
