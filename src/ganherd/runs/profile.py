"""Where the time of an iteration goes, routine by routine, since the last record.

Seconds of the host's clock. On a GPU the host runs ahead of the device, so work that is queued counts where the host waits
for it next; every routine here but `mutate` ends with such a wait, and none is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ganherd.runs import json_lines
from ganherd.runs.models import MetricsRecord

ROUTINES = ("gather", "evaluate", "update", "train", "mutate", "replace", "mixture")


# Key of a record's profile: the sums up to it. A reader of a long run needs the last record only.
TOTAL = "total"


def of_run(path: Path) -> dict[str, float]:
    """Return what `total` returns for a file of records; of runs without running sums every record is read."""
    last = json_lines.read_last(path, MetricsRecord, 1)
    own = last[0].profile if last else None
    return total(json_lines.read_all(path, MetricsRecord) if own is not None and TOTAL not in own else last)


def with_total(line: Mapping[str, Any], before: Mapping[str, float]) -> Mapping[str, Any]:
    """Return a record with the sums up to it.

    >>> with_total({"step": 2, "profile": {"update": 1.0}}, {"update": 2.0})["profile"]["total"]["update"]
    3.0
    """
    own = line.get("profile")
    return line if own is None else {**line, "profile": {**own, TOTAL: _sum(before, own)}}


def total(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of each routine over all records, in the order of an iteration; empty if none were measured.

    Running sums in a record cover all records up to it.

    >>> total([{"step": 1, "profile": {"update": 2.0, "gather": 0.5}}, {"step": 2, "profile": {"update": 1.0}}])["update"]
    3.0
    """
    sums: dict[str, float] = {}
    for line in metrics:
        if isinstance(own := line.get("profile"), Mapping):
            running = own.get(TOTAL)
            sums = _sum(running) if isinstance(running, Mapping) else _sum(sums, own)
    return sums


def _sum(*each: Mapping[str, Any]) -> dict[str, float]:
    return {name: round(sum(_seconds(one.get(name)) for one in each), 6) for name in ROUTINES}


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e18 else 0.0


class Profile:
    """`update` is the fused steps themselves (with all that changes from batch to batch), `train` what happens between
    them: records, looks, pictures, checkpoints. All routines together are the whole time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent = dict.fromkeys(ROUTINES, 0.0)
        self._left: float | None = None  # when the strategy last handed over to the loop, or the last record

    @contextmanager
    def of(self, routine: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._spent[routine] += self._clock() - began

    def leave(self) -> None:
        """Start counting the time as the loop's."""
        self._left = self._clock()

    def enter(self) -> None:
        """Stop counting the time as the loop's."""
        if self._left is not None:
            self._spent["train"] += self._clock() - self._left
        self._left = None

    def updated(self, seconds: float) -> None:
        """Move this many seconds of the loop's time to the steps."""
        self._spent["update"] += seconds
        self._spent["train"] -= seconds

    def take(self) -> dict[str, float]:
        """Return the seconds of each routine since the last call."""
        away = self._left is not None
        self.enter()
        seconds_of = {routine: round(max(seconds, 0.0), 6) for routine, seconds in self._spent.items()}
        self._spent = dict.fromkeys(ROUTINES, 0.0)
        if away:
            self.leave()
        return seconds_of
