"""The rungs of a sweep."""

from __future__ import annotations

import math

from ganherd.sweep.halving import cost, rungs, survivors


def test_the_better_half_trains_twice_as_long_until_four_are_left() -> None:
    assert [(rung.step, rung.trials) for rung in rungs(64, 1600)] == [
        (100, 64),
        (200, 32),
        (400, 16),
        (800, 8),
        (1600, 4),
    ]
    assert [(rung.step, rung.trials) for rung in rungs(64, 1600, halves=False)] == [(1600, 64)]
    assert [(rung.step, rung.trials) for rung in rungs(5, 1000)] == [(500, 5), (1000, 4)]
    assert min(rung.step for rung in rungs(4096, 100)) >= 10  # a score of fewer steps says nothing


def test_the_work_of_a_sweep_is_what_its_rungs_add_up_to() -> None:
    # 64 × 100 + 32 × 100 + 16 × 200 + 8 × 400 + 4 × 800 steps, in units of 1,600
    assert cost(64) == (6400 + 3200 + 3200 + 3200 + 3200) / 1600 and cost(64, halves=False) == 64


def test_trials_without_a_score_are_stopped_first() -> None:
    assert survivors({0: math.inf, 1: 2.0, 2: 1.0, 3: math.inf}, 3) == [0, 1, 2]
