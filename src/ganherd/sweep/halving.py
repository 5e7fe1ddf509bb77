"""Successive halving: all trials train for a few steps, then only the better half of them for twice as many, and so on.

Rungs are fixed in steps before anything trains. With a time budget the steps follow from the measured speed of the herd, so a
sweep that is interrupted and resumed makes the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FINALISTS = 4  # trials that are trained to the end, if more are proposed
FEWEST_STEPS = 10  # of the first rung: scores of fewer steps say nothing


@dataclass(frozen=True)
class Rung:
    """The step up to which some trials train before they are ranked, and how many of them train."""

    step: int
    trials: int


def rungs(trials: int, steps: int, halves: bool = True) -> list[Rung]:
    """Return the rungs of a sweep whose best trials train for `steps` steps; the last rung is the end.

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
    """Return the work of a sweep in units of one trial that trains to the end.

    >>> cost(4), cost(16)
    (4.0, 8.0)
    """
    whole = rungs(trials, 1 << 40, halves)
    before = [0, *(rung.step for rung in whole)]
    work = sum((rung.step - start) * rung.trials for rung, start in zip(whole, before, strict=False))
    return work / whole[-1].step


def survivors(costs: Mapping[int, float], count: int) -> list[int]:
    """Return the `count` trials with the lowest costs, in their order; ties go to the trial that was proposed first.

    >>> survivors({0: 3.0, 1: 1.0, 2: float("inf"), 3: 2.0}, 2)
    [1, 3]
    """
    best = sorted(costs, key=lambda trial: (costs[trial], trial))[:count]
    return sorted(best)


def stopped(trials: Sequence[int], left: Sequence[int]) -> list[int]:
    """Return the trials that are not left."""
    return [trial for trial in trials if trial not in left]
