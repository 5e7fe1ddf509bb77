"""Ranks of unlike speed: how fast each is with its members, and the weights by which members are handed out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

ALIKE = 1.2  # ranks that differ by no more than this factor get equal shares


def weights(rates: Sequence[float | None], kinds: Sequence[str]) -> list[float] | None:
    """How fast each rank is, for `placement.place`; None: all are alike. `rates`: in member-steps per second; None for a spare.

    Ranks of one kind (the same host and sort of device, an equal share of its cores) do the same work in the same time: what
    they differ in is what else ran there just then, so the middle one stands for all of them.

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
