"""Measure the seconds that each routine of an iteration takes, and add them up over the records of a run.

An iteration is a meeting of members with the training up to the next one. Seconds are those of the host's clock. On a
GPU the host runs ahead of the device, so queued work counts for the routine in which the host next waits for it. Every
routine but `mutate` ends with such a wait.
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


# The key in a record's profile for the sums over all records so far, so that readers of a long run need only the last
# record.
TOTAL = "total"


def of_run(path: Path) -> dict[str, float]:
    """Return the seconds of each routine over a whole run, from its metrics.jsonl.

    Only the last record is read, unless the run was recorded by a version that did not write running sums.
    """
    last = json_lines.read_last(path, MetricsRecord, 1)
    own = last[0].profile if last else None
    return total(json_lines.read_all(path, MetricsRecord) if own is not None and TOTAL not in own else last)


def with_total(line: Mapping[str, Any], before: Mapping[str, float]) -> Mapping[str, Any]:
    """Return a record with running sums added to its profile, if it has one.

    Args:
        before: The sums up to the previous record.

    >>> with_total({"step": 2, "profile": {"update": 1.0}}, {"update": 2.0})["profile"]["total"]["update"]
    3.0
    """
    own = line.get("profile")
    return line if own is None else {**line, "profile": {**own, TOTAL: _sum(before, own)}}


def total(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of each routine over all records, in the order of an iteration; empty if none were measured.

    If a record has running sums, they replace the sum of the records before it.

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
    """Return the sum of several profiles: seconds by routine."""
    return {name: round(sum(_seconds(one.get(name)) for one in each), 6) for name in ROUTINES}


def _seconds(value: Any) -> float:
    """Return a value of a record as seconds; 0 if it is not a valid number."""
    return float(value) if type(value) in (int, float) and 0 <= value < 1e18 else 0.0


class Profile:
    """Measure the seconds of each routine since the last record. Their sum is the whole time.

    `update` is the time of the steps themselves. `train` is the rest of the time in the training loop: records, checks,
    pictures and checkpoints. The strategy measures the other routines, during meetings, by `of`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent = dict.fromkeys(ROUTINES, 0.0)
        self._left: float | None = None  # when the training loop's time began to count; None: a meeting is in progress

    @contextmanager
    def of(self, routine: str) -> Iterator[None]:
        """Count the time of the block as time of this routine."""
        began = self._clock()
        try:
            yield
        finally:
            self._spent[routine] += self._clock() - began

    def leave(self) -> None:
        """Start counting the time for the training loop, at the end of a meeting."""
        self._left = self._clock()

    def enter(self) -> None:
        """Stop counting the time for the training loop, at the beginning of a meeting."""
        if self._left is not None:
            self._spent["train"] += self._clock() - self._left
        self._left = None

    def updated(self, seconds: float) -> None:
        """Count this many seconds of the training loop as `update`, the time of steps, instead of `train`."""
        self._spent["update"] += seconds
        self._spent["train"] -= seconds

    def take(self) -> dict[str, float]:
        """Return the seconds of each routine since the last call, and start again from 0."""
        away = self._left is not None
        self.enter()
        seconds_of = {routine: round(max(seconds, 0.0), 6) for routine, seconds in self._spent.items()}
        self._spent = dict.fromkeys(ROUTINES, 0.0)
        if away:
            self.leave()
        return seconds_of
