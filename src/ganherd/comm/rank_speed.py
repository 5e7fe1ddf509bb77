"""Weights for the placement of members on ranks of different speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

ALIKE = 1.2  # Ranks whose speeds differ by at most this factor get equal shares.


def weights(rates: Sequence[float | None], kinds: Sequence[str]) -> list[float] | None:
    """Return the speed of each rank, for `placement.place`; None if all ranks are about equally fast.

    Ranks of one kind (same host, type of device and share of its cores) are equally fast: measured differences come from
    other processes on the host. So all of them get the median of their rates.

    Args:
        rates: Member-steps per second of each rank; None for a spare.
        kinds: The kind of each rank.

    >>> weights([100.0, 104.0, 50.0, None], ["a", "a", "b", "b"])
    [102.0, 102.0, 50.0, 0.0]
    >>> weights([100.0, 60.0, 90.0], ["a", "a", "b"]) is None
    True
    """
    by_kind: dict[str, list[float]] = {}
    for kind, rate in zip(kinds, rates, strict=True):
        if rate is not None:
            by_kind.setdefault(kind, []).append(rate)
    middle = {kind: median(each) for kind, each in by_kind.items()}
    if len(middle) < 2 or min(middle.values()) <= 0 or not all(map(math.isfinite, middle.values())):
        return None
    if max(middle.values()) <= ALIKE * min(middle.values()):
        return None
    return [0.0 if rate is None else middle[kind] for kind, rate in zip(kinds, rates, strict=True)]
