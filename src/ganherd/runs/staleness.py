"""How old the nets of neighbours were when ranks took them, where exchange is async: read from a run's events alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def staleness(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Over all iterations: the most, and the mean of the rank that was furthest ahead; empty where all were in step.

    >>> staleness([{"event": "exchange", "most": [2, 0], "mean": [1.5, -1.0]}, {"event": "finish"}])
    {'iterations': 1, 'most': 2, 'mean': 1.5}
    """
    found = Staleness()
    for event in events:
        found.add(event)
    return found.facts()


class Staleness:
    """The same, event by event."""

    def __init__(self) -> None:
        self._iterations, self._most, self._mean = 0, 0, 0.0

    def add(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "exchange":
            self._iterations += 1
            self._most = max(self._most, *event["most"])
            self._mean += max(event["mean"])

    def facts(self) -> dict[str, float]:
        if not self._iterations:
            return {}
        return {"iterations": self._iterations, "most": self._most, "mean": round(self._mean / self._iterations, 3)}


def in_words(found: Mapping[str, float]) -> str:
    """
    >>> in_words({"iterations": 40, "most": 2, "mean": 1.25})
    "neighbours' nets were up to 2 iterations old when they were taken, 1.2 on average by the rank that was furthest ahead"
    """
    times = f"{found['most']:g} iteration{'s' * (found['most'] != 1)}"
    return (
        f"neighbours' nets were up to {times} old when they were taken, {found['mean']:.1f} on average by the rank that was "
        "furthest ahead"
    )
