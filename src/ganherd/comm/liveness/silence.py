"""Who has fallen silent: the first rank reads the others' signs of life, and says once who is missed, and once who is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganherd.comm.liveness import heartbeat

_AT_ONCE = 64  # files that are read with each beat; of more ranks each is looked at less often
Tell = Callable[[str, Mapping[str, Any]], None]  # the event, `late` or `back`, and its facts


class MissingRanks:
    """By the rule of `ganherd status`; what an earlier job on the same run has left is nobody's sign of life."""

    def __init__(self, folder: Path, rank: int, size: int, tell: Tell) -> None:
        """`folder`: the run's `ranks/`. `rank`: the one that listens."""
        self._folder, self._rank, self._tell = folder, rank, tell
        self._every, self._turn = -(-size // _AT_ONCE), 0  # beats from one look to the next
        self._since = self._looked = time.time()  # nobody is missed for what was before
        self._missed: dict[int, float] = {}  # rank -> when it was heard last

    def look(self, period: float) -> None:
        """Called with every beat of this rank; `period`: seconds between two of them."""
        self._turn += 1
        if self._turn % self._every:
            return
        now = time.time()
        if now - self._looked > (heartbeat.LATE + self._every) * period:
            self._since = now  # it was this rank that slept
        self._looked = now
        for beat in heartbeat.read(self._folder):
            if beat.rank == self._rank or (beat.state == "finished" and beat.time < self._since):
                continue
            heard = max(beat.time, self._since)
            health = replace(beat, time=heard).health(now)
            facts: dict[str, Any] = {"rank": beat.rank, "host": beat.host, "members": list(beat.members)}
            if health in ("late", "lost") and beat.rank not in self._missed:
                self._missed[beat.rank] = heard
                self._tell("late", {**facts, "since": round(heard, 3), "at": beat.step})
            elif health not in ("late", "lost") and beat.rank in self._missed:
                silent = beat.time - self._missed.pop(beat.rank)
                self._tell("back", {**facts, "seconds": round(max(0.0, silent), 1), "at": beat.step})


def in_words(event: str, facts: Mapping[str, Any]) -> str:
    """
    >>> in_words("back", {"rank": 1, "host": "n7", "seconds": 41.3, "at": 1200})
    'rank 1 on n7 is back: nothing was heard of it for 41 s'
    """
    who = f"rank {facts['rank']} on {facts['host']}"
    if event == "back":
        return f"{who} is back: nothing was heard of it for {facts['seconds']:.0f} s"
    when = time.strftime("%H:%M:%S", time.localtime(facts["since"]))
    return f"{who} is late: nothing was heard of it since {when}, when it was at step {facts['at']:,}; the others wait for it"
