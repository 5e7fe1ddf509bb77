"""How much better or worse than the first recipe: paired by seed, with an interval and a verdict."""

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
    """For every recipe but the first, by metric: {"value", "interval", "per_seed", "verdict", …}.

    >>> a, b = ({"fid": {"value": v, "per_seed": [v, v + 0.02 * v], "seeds": [0, 1]}} for v in (5.0, 3.0))
    >>> found = differences({"a": a, "b": b})["b"]["fid"]
    >>> round(found["value"], 3), found["verdict"]
    (-2.02, 'better')
    """
    first, *others = scores
    return {
        name: {
            metric: difference(metric, scores[first][metric], entry)
            for metric, entry in scores[name].items()
            if metric != SKIPPED and _is_number(entry.get("value")) and metric in scores[first]
            if _is_number(scores[first][metric].get("value"))
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
        for metric, entry in own.items():
            if metric != SKIPPED and _is_number(entry.get("value")):
                by_metric.setdefault(metric, {})[name] = entry
    return {
        metric: name
        for metric, entries in by_metric.items()
        for name, entry in entries.items()
        if len(entries) > 1
        and all(difference(metric, entries[o], entry)["verdict"] == "better" for o in entries if o != name)
    }


def difference(metric: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> ScoreDifference:
    """Return the mean difference with its interval and verdict. The verdict is on how much better each seed became: for a
    score of which 1 is best, on how much nearer to 1 it came."""
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
