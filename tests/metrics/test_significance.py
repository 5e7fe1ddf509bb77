"""A difference whose interval holds zero is undecided, and every comparison goes by that rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ganherd.metrics.statistics.intervals import jackknife, wilson
from ganherd.metrics.statistics.significance import difference, outcome, sign
from ganherd.recipe.mixture_scores import BY
from ganherd.scoring import METRICS
from ganherd.scoring.ensemble_scores import ScoreChange, change_of
from ganherd.scoring.ensembles import ChosenGenerators, EnsembleResult


def test_only_an_interval_without_zero_decides() -> None:
    assert [outcome(ends) for ends in ((0.1, 1.0), (-1.0, -0.1), (-0.1, 1.0), (0.0, 1.0), None)] == [
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
    assert jackknife(1.0, [1.0] * 10) is None and jackknife(-1.0, [-1.0 + 1e-12 * k for k in range(10)]) is None
    assert jackknife(float("nan"), [1.0, 2.0]) is None


def change(before: float, after: float, ends: tuple[float, float], by: str = "fid") -> ScoreChange:
    """The change of a score whose difference has this interval; all of its error is that of the second value."""
    groups = np.array([-1.0, 1.0] * 5)
    reach = jackknife(0.0, groups.tolist())
    assert reach is not None and after - before == pytest.approx((ends[0] + ends[1]) / 2)
    off = groups * (ends[1] - ends[0]) / (reach["high"] - reach["low"])
    return change_of(by, before, after, [(before, after + each) for each in off.tolist()])


def ensemble(before: float, after: float, ends: tuple[float, float], by: str = "fid") -> str:
    changes = {by: change(before, after, ends, by)}
    one = ChosenGenerators(0, "", (1, 2), (0.5, 0.5), changes, (before, after), 10)
    return str(EnsembleResult(Path("run"), by, "greedy", "pixels", 1000, 4, (one,)))


def test_an_ensemble_that_is_worse_on_fresh_samples_says_so() -> None:
    worse = ensemble(2.722, 2.922, (0.1, 0.3))
    assert "fid 2.722 → 2.922 (worse, difference +0.100 to +0.300)" in worse
    assert "Nothing is gained: by fid this is worse than the run's own mixture" in worse
    unsure = ensemble(2.722, 2.922, (-0.1, 0.5))
    assert "(undecided, difference" in unsure and "by fid is undecided" in unsure
    better = ensemble(2.9, 2.7, (-0.3, -0.1))
    assert "(better, difference" in better and "The ensemble" not in better
    assert "(better, difference" in ensemble(0.5, 0.7, (0.1, 0.3), "coverage")  # more of it is better


@pytest.mark.parametrize(
    ("before", "after", "ends", "verdict"),
    [
        (0.6, 0.8, (0.1, 0.3), "better"),  # below 1, more of it is better …
        (1.4, 1.6, (0.1, 0.3), "worse"),  # … and above 1, less
        (1.4, 1.2, (-0.3, -0.1), "better"),
        (0.6, 1.2, (0.5, 0.7), "better"),  # nearer to 1, on the other side
        (0.9, 1.6, (0.6, 0.8), "worse"),
        (0.9, 1.1, (0.1, 0.3), "undecided"),  # surely more, but as far from 1
    ],
)
def test_a_density_nearer_to_1_is_better(before: float, after: float, ends: tuple[float, float], verdict: str) -> None:
    text = ensemble(before, after, ends, "density")
    raw = f"density {before:.3f} → {after:.3f} ({verdict}, difference {ends[0]:+.3f} to {ends[1]:+.3f})"
    assert raw in text and ("by density" in text.partition("member")[2]) == (verdict != "better")


def test_the_verdict_goes_in_the_direction_of_the_metric() -> None:
    for name in BY:
        direction = METRICS["histogram" if name == "tvd" else name].direction
        expected = {"lower": "worse", "higher": "better", "nearest": "better"}[direction]
        if name in ("modes", "stacked_modes"):  # counts, which a jackknife does not fit
            expected = "undecided"
        assert change(0.4, 0.6, (0.1, 0.3), name).verdict == expected
        assert change(0.4, 0.6, (-0.1, 0.5), name).verdict == change_of(name, 0.4, 0.6, []).verdict == "undecided"
