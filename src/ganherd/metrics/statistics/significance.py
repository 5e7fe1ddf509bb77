"""Decide whether a difference is certain: without an interval, or if its 95 % interval contains zero, it is undecided."""

from __future__ import annotations

import math
from typing import Literal

from ganherd.runs.score_entry import ScoreInterval

Outcome = Literal["better", "worse", "undecided"]
UNDECIDED: Literal["undecided"] = "undecided"
Ends = tuple[float, float]


def sign(interval: ScoreInterval | Ends | None) -> int:
    """Return 1 if the whole interval is above zero, -1 if it is below, and 0 if it holds zero or is None.

    >>> sign((0.1, 0.3)), sign({"low": -0.3, "high": -0.1}), sign((-0.1, 0.3)), sign(None)
    (1, -1, 0, 0)
    """
    if interval is None:
        return 0
    low, high = interval if isinstance(interval, tuple) else (interval["low"], interval["high"])
    return 1 if low > 0 else -1 if high < 0 else 0  # NaN is undecided, too


def outcome(interval: ScoreInterval | Ends | None) -> Outcome:
    """Return whether an improvement is certain. The interval is that of a quantity of which more is better.

    >>> outcome((0.1, 0.3)), outcome((-0.1, 0.3))
    ('better', 'undecided')
    """
    return {1: "better", -1: "worse"}.get(sign(interval), "undecided")  # type: ignore[return-value]


def difference(value: float, ends: Ends, other: float, other_ends: Ends) -> Ends:
    """Return the interval of `value - other` from the intervals of two independent estimates.

    The reaches add in quadrature, each on the side that matters (Newcombe's method): two intervals that overlap a little
    can still differ.

    >>> low, high = difference(0.5, (0.4, 0.6), 0.3, (0.2, 0.4))
    >>> round(low, 3), round(high, 3)
    (0.059, 0.341)
    """
    middle = value - other
    down = math.hypot(value - ends[0], other_ends[1] - other)
    up = math.hypot(ends[1] - value, other - other_ends[0])
    return middle - down, middle + up
