"""Report how old the nets of neighbours were when ranks took them, if the exchange is asynchronous, from events alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def staleness(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the largest age, and the mean age at the rank that was furthest ahead; empty if all ranks were in step.

    >>> staleness([{"event": "exchange", "most": [2, 0], "mean": [1.5, -1.0]}, {"event": "finish"}])
    {'iterations': 1, 'most': 2, 'mean': 1.5}
    """
    total = Staleness()
    for event in events:
        total.add(event)
    return total.facts()


class Staleness:
    """Accumulate ages event by event."""

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


def in_words(ages: Mapping[str, float]) -> str:
    """
    >>> in_words({"iterations": 40, "most": 2, "mean": 1.25})
    "neighbours' nets were up to 2 iterations old when they were taken, 1.2 on average by the rank that was furthest ahead"
    """
    times = f"{ages['most']:g} iteration{'s' * (ages['most'] != 1)}"
    return (
        f"neighbours' nets were up to {times} old when they were taken, {ages['mean']:.1f} on average by the rank that was "
        "furthest ahead"
    )
