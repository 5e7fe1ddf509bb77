"""Convert records to long form, which tables and trackers need: one point for each step, metric and member."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ganherd.runs.models import NOT_FINITE
from ganherd.runs.records import LOOK_SCORES

WHOLE = -1  # the member of a number that is about the whole run
Columns = dict[str, "np.ndarray[Any, Any]"]


class Point(NamedTuple):
    """One number of a record."""

    step: int
    metric: str
    member: int
    value: float


def points(record: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the numbers of a record as points.

    Scores of a look come first, because they belong to the step of that look, which is earlier. A number of the whole
    run has the member -1 (`WHOLE`).

    >>> for point in points({"step": 6, "rate": 9.5, "loss_g": [0.5, "nan"], "looked": 4, "spread": [1.5, "nan"]}):
    ...     print(*point)
    4 spread 0 1.5
    6 loss_g 0 0.5
    6 loss_g 1 nan
    6 rate -1 9.5
    """
    for metric in LOOK_SCORES if "looked" in record else ():
        for point in _of_members(record["looked"], metric, record.get(metric)):
            if not math.isnan(point.value):  # not known
                yield point
    for metric, values in record.items():
        if metric not in LOOK_SCORES:
            yield from _of_members(record["step"], metric, values)
    if (rate := _number(record.get("rate"))) is not None:
        yield Point(record["step"], "rate", WHOLE, rate)


def columns(
    records: Iterable[Mapping[str, Any]], members: int, first_seed: int, seeds: int, trials: int = 0
) -> Columns:
    """Return all points of records as columns of equal length: `step`, `metric`, `member`, `seed` and `value`.

    `member` is the number within one replica, whose seed is in `seed`; both are -1 for numbers of the whole run. Runs
    with trials (settings in which replicas differ) have the number of the trial in a column `trial`, too.

    Args:
        members: The number of members of one replica.
        first_seed: The seed of the first replica.
        seeds: The number of replicas of each trial, one for each seed.
        trials: The number of trials; 0: the run has none.

    >>> columns([{"step": 6, "loss_g": [0.5, 0.25]}], 2, 0, 1)["value"].tolist()
    [0.5, 0.25]
    """
    each = [point for record in records for point in points(record)]
    member = np.array([point.member for point in each], np.int64)
    replica = member // members
    trial = {"trial": np.where(member < 0, WHOLE, replica // seeds)} if trials else {}
    return {
        "step": np.array([point.step for point in each], np.int64),
        "metric": np.array([point.metric for point in each], np.str_),
        "member": np.where(member < 0, WHOLE, member % members),
        **trial,
        "seed": np.where(member < 0, WHOLE, first_seed + replica % seeds),
        "value": np.array([point.value for point in each], np.float64),
    }


def _of_members(step: int, metric: str, values: Any) -> Iterator[Point]:
    """Yield a point for each number in a list of values, one for each member."""
    for member, value in enumerate(values if isinstance(values, list) else ()):
        if (number := _number(value)) is not None:
            yield Point(step, metric, member, number)


def _number(value: Any) -> float | None:
    """Return a value of a record as a float, also if it is text such as "nan"; None if it is not a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number or (isinstance(value, str) and value in NOT_FINITE) else None
