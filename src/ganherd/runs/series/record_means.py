"""Handle a last record that covers only a few steps, whose means are not comparable with those of other records.

Means over one or two steps vary much more than means over fifty, so that curves would end in a meaningless spike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MEANS = ("loss_g", "loss_d", "real", "fake")  # numbers of a record that are means over its steps


def is_short(start: int, before: int, last: int) -> bool:
    """Return whether the last record of a run covers less than half as many steps as the record before it.

    Args:
        start: The step at which the record before begins.
        before: The step of the record before, at which the last one begins.
        last: The step of the last record.

    >>> is_short(50, 100, 110), is_short(50, 100, 125)
    (True, False)
    """
    return 0 < 2 * (last - before) < before - start


def merge_short_end(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records, with the last two merged into one if the last is short (see `is_short`).

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
    """Return the losses of all members as float64 [records, N]; NaN for missing values. `key`: `loss_g` or `loss_d`."""
    rows = [[_number(v) for v in line.get(key) or []] for line in metrics]
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


def _number(value: Any) -> float:
    """Return a value of a record as a float, also if it is text such as `nan` or `inf`; NaN for other text and None."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
