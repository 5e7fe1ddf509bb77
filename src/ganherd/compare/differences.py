"""Compute how much better or worse than the first recipe others are: paired by seed, with interval and verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from ganherd.compare.comparison_record import ScoreDifference
from ganherd.metrics.metric_registry import METRICS
from ganherd.metrics.statistics.seeds import together
from ganherd.metrics.statistics.verdict import UNDECIDED, verdict
from ganherd.scoring.result import SKIPPED

Scores = Mapping[str, Mapping[str, Any]]


def differences(scores: Mapping[str, Scores]) -> dict[str, dict[str, ScoreDifference]]:
    """Return the differences of every other recipe from the first one, by recipe and metric.

    >>> a, b = ({"fid": {"value": v, "per_seed": [v, v + 0.02 * v], "seeds": [0, 1]}} for v in (5.0, 3.0))
    >>> found = differences({"a": a, "b": b})["b"]["fid"]
    >>> round(found["value"], 3), found["verdict"]
    (-2.02, 'better')
    """
    first, *others = scores
    measured = {name: _measured(own) for name, own in scores.items()}
    return {
        name: {
            metric: difference(metric, measured[first][metric], entry)
            for metric, entry in measured[name].items()
            if metric in measured[first]
        }
        for name in others
    }


def better(scores: Mapping[str, Scores]) -> dict[str, str]:
    """Return by metric the recipe that is better than every other; metrics without one are left out.

    >>> a, b = ({"fid": {"value": v, "per_seed": [v, v + 0.02 * v]}, "kid": {"value": v, "per_seed": [v]}} for v in (5.0, 3.0))
    >>> better({"a": a, "b": b})
    {'fid': 'b'}
    """
    by_metric: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, own in scores.items():
        for metric, entry in _measured(own).items():
            by_metric.setdefault(metric, {})[name] = entry
    return {
        metric: name
        for metric, entries in by_metric.items()
        for name, entry in entries.items()
        if len(entries) > 1
        and all(difference(metric, entries[o], entry)["verdict"] == "better" for o in entries if o != name)
    }


def difference(metric: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> ScoreDifference:
    """Return the mean difference with its interval and verdict.

    The verdict is about the gain of each seed; for a score of which 1 is best, the gain is how much nearer to 1 it is.
    """
    pairs = [
        (a, b)
        for a, b in zip(first.get("per_seed", ()), other.get("per_seed", ()), strict=False)
        if _is_number(a) and _is_number(b)
    ]
    if not pairs:
        return {"value": other["value"] - first["value"], "per_seed": [], "verdict": UNDECIDED}
    seeds, merit = first.get("seeds", []), METRICS[metric].merit
    gained = together([{"value": merit(b) - merit(a)} for a, b in pairs], seeds)
    mean = together([{"value": b - a} for a, b in pairs], seeds)
    return cast(ScoreDifference, {**mean, "verdict": verdict(gained.get("interval"))})


def _measured(scores: Scores) -> Scores:
    """Return the scores that have a value."""
    return {m: entry for m, entry in scores.items() if m != SKIPPED and _is_number(entry.get("value"))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
