"""Let members (GANs) train at different paces, i.e. make fewer steps than the run, and count their steps exactly.

Fractions instead of floats keep the counts exact over any number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Pace = tuple[Fraction, ...]  # [N] steps of each member per step of the run; () if every member makes each step


def paces(speeds: Sequence[float]) -> Pace:
    """Return the members' speeds, in steps per step of the run, as exact fractions.

    With floats, speed 0.29 would make 28 steps in 100, because int(100 * 0.29) is 28.

    >>> [int(100 * pace) for pace in paces([1.0, 0.29])]
    [100, 29]
    """
    return tuple(Fraction(str(speed)) for speed in speeds)


def own_step(step: int, pace: Fraction) -> int | None:
    """Return the number (from 0) of the step that a member makes at a step of the run; None if it skips that one.

    >>> [own_step(t, Fraction(1, 2)) for t in range(4)]
    [None, 0, None, 1]
    """
    steps_made = int(step * pace)
    return steps_made if int((step + 1) * pace) > steps_made else None


def pace_blocks(num_members: int, width: int, pace: Pace = ()) -> list[slice]:
    """Return slices that divide the members 0, …, num_members - 1 into blocks of at most `width` members of equal pace.

    >>> pace_blocks(5, 2), pace_blocks(3, 2, paces([1, 0.5, 0.5]))
    ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(0, 1, None), slice(1, 3, None)])
    """
    cuts = [m for m in range(1, len(pace)) if pace[m] != pace[m - 1]]
    equal = zip([0, *cuts], [*cuts, num_members], strict=True)
    return [slice(first, min(first + width, stop)) for start, stop in equal for first in range(start, stop, width)]
