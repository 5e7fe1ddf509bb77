"""A difference whose interval holds zero is undecided, and every comparison goes by that rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ganherd.metrics.statistics.intervals import jackknife, wilson
from ganherd.metrics.statistics.verdict import difference, sign, verdict
from ganherd.recipe.mixture_scores import LESS, MORE
from ganherd.scoring import METRICS
from ganherd.scoring.ensembles import ChosenGenerators, EnsembleResult


def test_only_an_interval_without_zero_decides() -> None:
    assert [verdict(ends) for ends in ((0.1, 1.0), (-1.0, -0.1), (-0.1, 1.0), (0.0, 1.0), None)] == [
        "better",
        "worse",
        "undecided",
        "undecided",
        "undecided",
    ]
    assert sign((float("nan"), float("nan"))) == 0


def test_the_interval_of_a_difference_holds_it_in_95_percent() -> None:
    rng, held, repeats, n = np.random.default_rng(0), 0, 2000, 400
    for a, b in rng.binomial(n, (0.30, 0.36), size=(repeats, 2)) / n:
        low, high = difference(b, wilson(b, n), a, wilson(a, n))
        held += low <= 0.06 <= high
    assert abs(held / repeats - 0.95) < 3 * (0.95 * 0.05 / repeats) ** 0.5


def test_the_jackknife_has_the_error_of_a_mean() -> None:
    x = np.random.default_rng(1).normal(size=1000)
    without = [float(x[np.arange(1000) % 10 != group].mean()) for group in range(10)]
    found = jackknife(float(x.mean()), without)
    assert found is not None and (found["high"] - found["low"]) / 2 == pytest.approx(2.262 / 1000**0.5, rel=0.5)
    assert jackknife(1.0, [1.0] * 10) is None and jackknife(float("nan"), [1.0, 2.0]) is None


def ensemble(before: float, after: float, ends: tuple[float, float], by: str = "fid") -> str:
    interval = {by: {"low": ends[0], "high": ends[1]}}
    one = ChosenGenerators(0, (1, 2), (0.5, 0.5), {by: before}, {by: after}, interval, (before, after), 10)
    return str(EnsembleResult(Path("run"), by, "greedy", "pixels", 1000, 4, (one,)))


def test_an_ensemble_that_is_worse_on_fresh_samples_says_so() -> None:
    worse = ensemble(2.722, 2.926, (0.1, 0.3))
    assert "fid 2.722 → 2.926 (worse, difference +0.100 to +0.300)" in worse
    assert "The ensemble is worse than the run's own mixture by fid: sample the run as it is." in worse
    unsure = ensemble(2.722, 2.926, (-0.1, 0.5))
    assert "(undecided, difference" in unsure and "by fid is undecided" in unsure
    better = ensemble(2.9, 2.7, (-0.3, -0.1))
    assert "(better, difference" in better and "The ensemble" not in better
    assert "(better, difference" in ensemble(0.5, 0.7, (0.1, 0.3), "coverage")  # more of it is better


def test_what_mixtures_are_searched_by_goes_in_the_direction_of_the_metric() -> None:
    for name in LESS:
        assert METRICS["histogram" if name == "tvd" else name].direction == "lower"
    for name in MORE:
        assert METRICS[name].direction == ("nearest" if name == "density" else "higher")
