"""Combine the scores of several replicas: means over the seeds, their spread, and the value of each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry

Entry = Mapping[str, Any]
# The minimum over replicas is reported.
COUNTS = ("samples", "fewest", "held_out", "training", "real_samples", "held_out_samples")
SURE = 6  # equal values of this many seeds give an interval; by the sign test, 2 ** (1 - 6) < 0.05


def together(
    each: Sequence[Entry], seeds: Sequence[int], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> ScoreEntry:
    """Return one entry of scores.json for all replicas of a herd: the mean of their values with Student's interval.

    Args:
        each: The entry of each replica.
        seeds: The seed of each replica.
        bounds: The least and the largest possible value, where the interval is cut.

    >>> one, two = ({"value": v, "samples": 10, "network": "pixels", "seed": 0, "replica": r} for r, v in enumerate((1.0, 3.0)))
    >>> found = together([one, two], [0, 1])
    >>> found["value"], found["per_seed"], round(found["std"], 3), found["samples"]
    (2.0, [1.0, 3.0], 1.414, 10)
    """
    values = [entry["value"] for entry in each]
    known = [value for value in values if value is not None]
    # Intervals over samples are those of one replica; the interval of a mean comes from the spread of the replicas.
    # That of real data stays: the data is the same for all of them.
    own = ("replica", "interval", "std", "error")
    others = {k for one in each for k in one if k.endswith("_interval")} - {"real_interval"}
    out = _merged([{k: v for k, v in one.items() if k not in own and k not in others} for one in each])
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    mean = float(np.mean(known)) if known else math.nan
    if deviation is not None and (deviation > 1e-9 * abs(mean) or len(known) >= SURE):
        reach = intervals.student_t(len(known) - 1) * deviation / math.sqrt(len(known))
        over_seeds = intervals.interval(mean - reach, mean + reach, f"Student's t over {len(known)} seeds")
        out["interval"] = intervals.cut(over_seeds, bounds)
    return cast(ScoreEntry, {**out, "std": deviation, "per_seed": values, "seeds": list(seeds)})


def _merged(each: Sequence[Entry]) -> dict[str, Any]:
    """Merge key by key: numbers become their mean, counts their minimum; other keys that differ are left out."""
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for entry in each for key in entry):
        values = [entry.get(key) for entry in each]
        present = [value for value in values if value is not None]
        if not present:
            out[key] = None
        elif key in COUNTS or (key.endswith("_samples") and not isinstance(present[0], Mapping)):
            out[key] = min(present)
        elif key.endswith("_samples"):
            out[key] = {name: min(value[name] for value in present if name in value) for name in present[0]}
        elif all(value == present[0] for value in values):
            out[key] = present[0]
        elif all(isinstance(value, Mapping) for value in present):
            out[key] = _merged(present)
        elif key == "warning":
            out[key] = present[0]  # a warning about one replica applies to the mean
        elif all(isinstance(value, (int, float)) for value in present) and key not in ("best_member", "best_replica"):
            out[key] = float(np.mean(present))
    return out
