"""Differences between contenders: paired by seed or by Welch's test, corrected by Holm, with an honest verdict."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from comparisons import facts_of, scored, shown

from ganherd.compare import differences
from ganherd.compare.answer import answer
from ganherd.metrics.modes import Coverage, Modes, entry
from ganherd.metrics.statistics import intervals
from ganherd.metrics.statistics.significance import difference as newcombe


def test_a_verdict_needs_an_interval_without_zero() -> None:
    def verdict(metric: str, first: list[float], other: list[float]) -> str:
        a, b = ({"value": float(np.mean(v)), "per_seed": v, "seeds": [0, 1, 2]} for v in (first, other))
        return differences.difference(metric, a, b)["verdict"]

    assert verdict("fid", [5.0, 6.0, 7.0], [3.0, 4.1, 5.0]) == "better"
    assert verdict("fid", [3.0, 4.0, 5.0], [5.0, 6.1, 7.0]) == "worse"
    assert verdict("fid", [5.0, 6.0, 7.0], [3.0, 9.0, 5.0]) == "undecided"
    assert (
        verdict("modes", [14.0, 13.0], [15.0, 14.0]) == "undecided"
    )  # that two differ by the same tells nothing of the spread
    assert verdict("fid", [0.3, 0.2], [0.3 - 0.1, 0.1]) == "undecided"  # nor does rounding
    assert verdict("modes", [14.0] * 6, [15.0] * 6) == "better"
    assert verdict("label_accuracy", [0.5, 0.6, 0.7], [0.7, 0.81, 0.9]) == "better"
    assert verdict("diversity", [1.5, 1.6, 1.7], [1.2, 1.31, 1.4]) == "better"  # nearer to 1, from above
    assert verdict("density", [0.9, 0.91, 0.89], [1.1, 1.11, 1.09]) == "undecided"  # as far from 1, on the other side
    assert verdict("density", [0.9, 0.91, 0.89], [1.3, 1.31, 1.28]) == "worse"


def test_a_star_needs_a_paired_difference_to_all_others() -> None:
    """Intervals that overlap do not matter: seeds that go up and down together still differ."""
    a = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0], recall=[0.1, 0.2, 0.3])
    b = scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5], recall=[0.2, 0.3001, 0.4])
    assert differences.Differences({"a": a, "b": b}).best() == {"fid": "b", "recall": "b"}
    c = scored(fid=[5.0, 4.0, 6.0], recall=[0.0, 0.1002, 0.2])
    assert differences.Differences({"a": a, "b": b, "c": c}).best() == {"recall": "b"}
    text = shown(facts_of({"a": a, "b": b}, 3), verbose=True)
    by_score = {line.split()[0]: line for line in text.split("difference  ")[0].splitlines() if line}
    assert "4.000 *" not in text and by_score["FID"].index("*") > by_score["FID"].index("5.003")
    assert "*" not in by_score["KID"] and "~" not in text and "overlap" not in text
    one = shown(facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[1.0])}, 1), verbose=True)
    assert "*" not in one and "~" not in one


def test_verdicts_on_other_than_the_primary_score_are_corrected() -> None:
    """By itself each difference is significant; of eleven looks at noise, one would be too."""
    first = {"fid": [5.0, 6.0, 7.0]} | {name: [5.0, 6.0, 7.0] for name in ("kid", "ifid", "recall", "coverage")}
    other = {name: [value + 0.7 + 0.3 * i for i, value in enumerate(values)] for name, values in first.items()}
    other["kid"] = [value + 1 + 0.001 * i for i, value in enumerate(first["kid"])]
    both = {"a": scored(**first), "b": scored(**other)}
    apart = differences.Differences(both).to_first()["b"]
    assert apart["fid"]["p"] == pytest.approx(apart["recall"]["p"]) and apart["fid"]["p"] < 0.05
    assert apart["fid"]["p_corrected"] == apart["fid"]["p"] and apart["fid"]["verdict"] == "worse"  # primary, by itself
    assert apart["recall"]["p_corrected"] == pytest.approx(3 * apart["recall"]["p"])  # one of four has a smaller p
    assert apart["recall"]["p_corrected"] > 0.05 and apart["recall"]["verdict"] == "undecided"
    assert apart["kid"]["verdict"] == "worse"  # certain enough for four looks
    assert differences.Differences(both, primary="recall").to_first()["b"]["recall"]["verdict"] == "better"


def test_seeds_are_paired_by_their_number_or_compared_by_welch() -> None:
    a = {"value": 6.0, "per_seed": [5.0, 6.0, 7.0], "seeds": [0, 1, 2]}
    b = {"value": 3.0, "per_seed": [3.01, 2.0, 4.0], "seeds": [1, 0, 2]}
    paired = differences.difference("fid", a, b)
    assert paired["verdict"] == "better" and sorted(paired["per_seed"]) == pytest.approx([-3.0, -3.0, -2.99])
    other = differences.difference("fid", a, {**b, "seeds": [7, 8, 9]})
    assert "Welch" in other["interval"]["how"] and other["verdict"] == "better" and other["p"] > paired["p"]
    one_seed = [{"value": v, "interval": {"low": v - 0.1, "high": v + 0.1}} for v in (3.0, 4.0)]
    assert differences.difference("fid", *one_seed)["verdict"] == "undecided"  # one seed says nothing of luck
    assert (
        differences.difference("fid", *one_seed, over_samples=True)["verdict"] == "worse"
    )  # but something of these samples


def test_different_seeds_that_do_not_vary_are_undecided_without_a_warning() -> None:
    a = {"value": 14.0, "per_seed": [14.0, 14.0], "seeds": [0, 1]}
    b = {"value": 15.0, "per_seed": [15.0, 15.0], "seeds": [7, 8]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        undecided = differences.difference("modes", a, b)
    assert undecided["verdict"] == "undecided" and "interval" not in undecided and "p" not in undecided


def test_the_interval_over_samples_is_newcombes_and_agrees_with_the_verdict() -> None:
    first = {"value": 0.9, "interval": {"low": 0.7, "high": 0.95}}
    other = {"value": 0.99, "interval": {"low": 0.97, "high": 1.0}}
    result = differences.difference("recall", first, other, over_samples=True)
    ends = (result["interval"]["low"], result["interval"]["high"])
    assert ends == newcombe(0.99, (0.97, 1.0), 0.9, (0.7, 0.95))
    assert ends[0] > 0 and result["verdict"] == "better"


def test_a_difference_whose_interval_ends_at_zero_is_undecided() -> None:
    """1.96 standard errors have p = 0.049996, so such an interval used to be called better."""
    one = {"value": 13, "of": 15, "interval": {"low": 12.0, "high": 13.0}}
    other = {"value": 14, "of": 15, "interval": {"low": 13.0, "high": 14.0}}
    result = differences.difference("modes", one, other, over_samples=True)
    assert result["interval"]["low"] == 0 and result["p"] > 0.05 and result["verdict"] == "undecided"
    rng = np.random.default_rng(0)
    for _ in range(2000):
        a, b = ({"value": v, "interval": {"low": v - d, "high": v + u}} for v, d, u in rng.uniform(0, 1, (2, 3)))
        result = differences.difference("fid", a, b, over_samples=True)
        holds_zero = result["interval"]["low"] <= 0 <= result["interval"]["high"]
        assert holds_zero == (result["verdict"] == "undecided") == (result["p"] > 0.05)


@pytest.mark.parametrize("rate", [0.3, 0.7, 1.0, 2.0, 3.0])
def test_equal_mixtures_rarely_differ_in_modes(rate: float) -> None:
    """Five of 15 modes get this many of 2,500 points on average; 11 to 37 % of such trials used to be decided."""
    rng, points = np.random.default_rng(0), 2500
    shares = np.array([rate / points] * 5 + [(1 - 5 * rate / points) / 10] * 10)
    modes = Modes(10.0 * np.arange(15)[:, None] * np.ones(2), np.ones((15, 2)), shares, "fifteen on a line")

    def drawn() -> dict[str, Any]:
        counts = rng.multinomial(points, shares)
        covered = Coverage(int((counts > 0).sum()), 15, 1.0, 0.0, counts, counts > 0, points)
        return dict(entry(covered, modes))

    trials = 200
    verdicts = [differences.difference("modes", drawn(), drawn(), over_samples=True)["verdict"] for _ in range(trials)]
    assert sum(verdict != "undecided" for verdict in verdicts) <= 0.05 * trials


def test_a_missing_mode_is_still_a_difference() -> None:
    full, seven = np.full(8, 310), np.array([357] * 7 + [0])
    entries = [{"value": int((c > 0).sum()), "interval": intervals.captured(c, int(c.sum()), 0)} for c in (full, seven)]
    assert differences.difference("modes", *entries, over_samples=True)["verdict"] == "worse"


def test_pairs_without_the_first_contender_are_decided_too() -> None:
    """b and c differ for certain, and a may be like either."""
    a, b, c = scored(fid=[3.0, 9.0, 6.0]), scored(fid=[4.0, 5.01, 6.0]), scored(fid=[6.0, 7.0, 8.01])
    facts = facts_of({"a": a, "b": b, "c": c}, 3)
    assert facts["bases"]["budget"]["decided"] == {"fid": [("b", "c")]} and facts["bases"]["budget"]["best"] == {}
    assert answer(facts).startswith("b is better than c in FID, and which is the best is undecided")
    older = {name: value for name, value in facts["bases"]["budget"].items() if name != "decided"}
    assert answer({**facts, "bases": {"budget": older}}).startswith("FID does not decide between them")


def test_an_answer_names_each_contender_that_is_better_once() -> None:
    a, b = scored(fid=[3.0, 4.0, 3.5]), scored(fid=[4.0, 3.0, 3.6])
    c, d = scored(fid=[9.0, 9.5, 9.3]), scored(fid=[9.5, 9.0, 9.4])
    text = answer(facts_of({"a": a, "b": b, "c": c, "d": d}, 3))
    decided = "a is better than c and d; b is better than c and d in FID, and which is the best is undecided"
    assert text.startswith(decided)
