"""Plan successive halving: all trials train for a few steps, then the better half for twice as many, and so on.

A trial is one setting that a sweep tries; a rung is a step at which trials are ranked and the worse ones are stopped.
Rungs are fixed in steps before anything trains, so a resumed sweep makes the same decisions. With a time budget, they
are computed once from the measured speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FINALISTS = 4  # least number of trials that are trained to the end; fewer only if a sweep has fewer
FEWEST_STEPS = 10  # least number of steps before the first ranking, because scores after fewer steps mean nothing


@dataclass(frozen=True)
class Rung:
    """A step at which trials are ranked, and the number of trials that train up to it."""

    step: int
    trials: int


def rungs(trials: int, steps: int, halves: bool = True) -> list[Rung]:
    """Return the rungs of a sweep whose best trials train for `steps` steps; the last rung is at this step.

    Args:
        trials: The number of trials.
        steps: The number of steps of the best trials.
        halves: False: train all trials to the end, which gives one rung.

    >>> [(rung.step, rung.trials) for rung in rungs(16, 1000)]
    [(250, 16), (500, 8), (1000, 4)]
    >>> [(rung.step, rung.trials) for rung in rungs(3, 1000)]
    [(1000, 3)]
    """
    left = [trials]
    while halves and left[-1] > FINALISTS and steps >> len(left) >= FEWEST_STEPS:
        left.append(max(FINALISTS, math.ceil(left[-1] / 2)))
    return [Rung(steps >> (len(left) - 1 - number), count) for number, count in enumerate(left)]


def cost(trials: int, halves: bool = True) -> float:
    """Return the work of a sweep, relative to that of training one trial to the end.

    Args:
        trials: The number of trials at the start.
        halves: Stop the worse half of the trials at each rung; otherwise all are trained to the end.

    >>> cost(4), cost(16)
    (4.0, 8.0)
    """
    whole = rungs(trials, 1 << 40, halves)
    before = [0, *(rung.step for rung in whole)]
    work = sum((rung.step - start) * rung.trials for rung, start in zip(whole, before, strict=False))
    return work / whole[-1].step


def survivors(costs: Mapping[int, float], count: int) -> list[int]:
    """Return the numbers of the `count` trials with the lowest costs, in ascending order; a lower number wins a tie.

    >>> survivors({0: 3.0, 1: 1.0, 2: float("inf"), 3: 2.0}, 2)
    [1, 3]
    """
    best = sorted(costs, key=lambda trial: (costs[trial], trial))[:count]
    return sorted(best)


def stopped(trials: Sequence[int], left: Sequence[int]) -> list[int]:
    """Return those of `trials` that are not in `left`: the ones that were stopped."""
    return [trial for trial in trials if trial not in left]
