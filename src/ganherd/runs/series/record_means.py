"""Means over the steps of a record, and what to do about a last record that covers only a few steps.

The means over a step or two are far from those over fifty: a curve would end in a spike that means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MEANS = ("loss_g", "loss_d", "real", "fake")  # numbers of a record that are means over its steps


def is_short(start: int, before: int, last: int) -> bool:
    """Return whether a last record, of the steps from `before` to `last`, covers less than half as many as the one before it.

    >>> is_short(50, 100, 110), is_short(50, 100, 125)
    (True, False)
    """
    return 0 < 2 * (last - before) < before - start


def merge_short_end(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records, the last two of them as one if the last covers less than half as many steps as the one before.

    >>> lines = [{"step": step, "loss_g": [loss]} for step, loss in ((50, 1.0), (100, 1.0), (110, 7.0))]
    >>> merge_short_end(lines)[-1]
    {'step': 110, 'loss_g': [2.0]}
    """
    if len(metrics) < 2:
        return list(metrics)
    start = metrics[-3]["step"] if len(metrics) > 2 else 0
    before, last = metrics[-2], metrics[-1]
    weights = before["step"] - start, last["step"] - before["step"]
    if not is_short(start, before["step"], last["step"]):
        return list(metrics)
    means = {}
    for key in MEANS:
        if last.get(key) and before.get(key):
            pairs = zip(before[key], last[key], strict=False)
            means[key] = [(_number(a) * weights[0] + _number(b) * weights[1]) / sum(weights) for a, b in pairs]
    return [*metrics[:-2], {**before, **last, **means}]


def loss_table(metrics: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Return losses as float64 [records, N]; NaN for missing values."""
    rows = [[_number(v) for v in line.get(key) or []] for line in metrics]
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


def _number(value: Any) -> float:
    """Return a value of a record as a float; records hold `nan` and `inf` as text. Other text and None become NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
