"""Members at their own pace: how many steps each has made at a step of the run, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Pace = tuple[Fraction, ...]  # [N] own steps of each member for one step of the run; (): everyone makes one


def paces(speeds: Sequence[float]) -> Pace:
    """Speeds as exact fractions: 0.29 makes 29 steps in 100, where a float would make 28.

    >>> [int(100 * pace) for pace in paces([1.0, 0.29])]
    [100, 29]
    """
    return tuple(Fraction(str(speed)) for speed in speeds)


def own_step(step: int, pace: Fraction) -> int | None:
    """Which of its own steps a member makes at that step of the run; none: it makes none.

    >>> [own_step(t, Fraction(1, 2)) for t in range(4)]
    [None, 0, None, 1]
    """
    made = int(step * pace)
    return made if int((step + 1) * pace) > made else None


def pace_blocks(size: int, width: int, pace: Pace = ()) -> list[slice]:
    """Neighbours of one pace, at most `width` together.

    >>> blocks(5, 2), blocks(3, 2, paces([1, 0.5, 0.5]))
    ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(0, 1, None), slice(1, 3, None)])
    """
    cuts = [m for m in range(1, len(pace)) if pace[m] != pace[m - 1]]
    runs = zip([0, *cuts], [*cuts, size], strict=True)
    return [slice(a, min(a + width, stop)) for start, stop in runs for a in range(start, stop, width)]
