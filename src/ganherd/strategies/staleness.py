"""How old the nets of neighbours were when ranks took them, where exchange is async: read from a run's events alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def staleness(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Over all iterations: the most, and the mean of the rank that was furthest ahead; empty where all were in step.

    >>> staleness([{"event": "exchange", "most": [2, 0], "mean": [1.5, -1.0]}, {"event": "finish"}])
    {'iterations': 1, 'most': 2, 'mean': 1.5}
    """
    told = [event for event in events if event.get("event") == "exchange"]
    if not told:
        return {}
    most = max(number for event in told for number in event["most"])
    mean = sum(max(event["mean"]) for event in told) / len(told)
    return {"iterations": len(told), "most": most, "mean": round(mean, 3)}


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
