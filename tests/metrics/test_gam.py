"""GAM and GAM-II: the right judges, the right thresholds, the right words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ganherd.metrics.gam import gam, gam_table
from ganherd.metrics.gam.gam import Player, called_real, gam2, helps, met_matrix, threshold
from ganherd.util.errors import UserError


def paper() -> list[Player]:
    """The ten models of the paper's tables: four single ones, four of a GAP herd, two of a combined herd."""
    groups = ["single"] * 4 + ["gap4"] * 4 + ["c4"] * 2
    return [Player(group, i) for i, group in enumerate(groups)]


def test_the_papers_ten_models_have_six_judges_and_eight() -> None:
    met = met_matrix(paper(), other_runs=True, swaps=[True] * 10)
    assert (~met).sum(0).tolist() == [6] * 8 + [8] * 2


def test_within_one_run_independent_members_judge_all_others_and_herds_that_meet_none() -> None:
    players = [Player("a", m, herd) for herd in range(2) for m in range(3)]
    assert (~met_matrix(players, False, [False] * 6)).sum(0).tolist() == [5] * 6
    # replicas never met, so the other replica's three judge
    assert (~met_matrix(players, False, [True] * 6)).sum(0).tolist() == [3] * 6


def test_members_of_different_classes_do_not_judge_each_other() -> None:
    players = [Player(run, m, 0, label=m) for run in "ab" for m in range(3)]
    met = met_matrix(players, True, [False] * 6)
    assert np.argwhere(~met).tolist() == [[0, 3], [1, 4], [2, 5], [3, 0], [4, 1], [5, 2]]


def test_average_and_worst_by_hand() -> None:
    rng = np.random.default_rng(0)
    errors, met = rng.random((10, 10)), met_matrix(paper(), True, [True] * 10)
    found = gam2(errors, met)
    for m in range(10):
        allowed = [errors[j, m] for j in range(10) if not met[j, m]]
        assert found.average[m] == pytest.approx(np.mean(allowed)) and found.worst[m] == min(allowed)
    assert found.winner == int(np.argmax(found.average))


def test_a_generator_that_met_everybody_has_no_score() -> None:
    found = gam2(np.full((2, 2), 0.3), np.array([[True, False], [True, True]]))
    assert math.isnan(found.average[0]) and found.average[1] == 0.3 and found.winner == 1
    assert gam2(np.full((1, 1), 0.3), np.ones((1, 1))).winner is None


def test_error_rates_are_shares_above_each_judges_own_threshold() -> None:
    logits = np.array([[[-1.0, 0.0, 1.0, 2.0]] * 2, [[-1.0, 0.0, 1.0, 2.0]] * 2])  # [J, M, n]
    assert called_real(logits, np.array([0.0, -0.5])).tolist() == [[0.5, 0.5], [0.75, 0.75]]  # 0 itself is not above 0
    with pytest.raises(UserError, match="NaN"):
        called_real(np.array([[np.nan]]), np.zeros(1))


@pytest.mark.parametrize(
    ("loss", "at", "says"),
    [
        ("minimax", 0.0, "probability 0.5"),
        ("non-saturating", 0.0, "probability 0.5"),
        ("hinge", 0.0, "logit 0"),
        ("least-squares", 0.5, "logit 0.5"),
        ("wasserstein", 5.0, "midpoint"),
        ("wasserstein-gp", 5.0, "midpoint"),
    ],
)
def test_every_loss_has_a_stated_threshold(loss: str, at: float, says: str) -> None:
    found, words = threshold(loss, np.array([9.0, 11.0]), np.array([-1.0, 1.0]))
    assert found == at and says in words


def test_helps_is_said_only_of_differences_that_the_samples_decide() -> None:
    single = np.array([0.352, 0.395])

    def words(*herd: float, samples: int = 10_000) -> str:
        return helps(np.array(herd), single, samples)["words"]

    assert words(0.430, 0.476) == "strongly helps"  # the paper's MNIST row
    assert words(0.380, 0.423) == "helps"
    assert words(0.108, 0.180) == "does not help"
    assert words(np.nan) == "cannot be judged"
    assert words(0.400) == "undecided" and words(0.390, 0.360) == "undecided"
    assert words(0.430, 0.476, samples=100) == "undecided"
    assert words(0.430, 0.396) == "helps"  # the second is undecided
    best = helps(np.array([0.380, 0.423]), single, 10_000)
    assert best["value"] == pytest.approx(0.028) and 0 < best["interval"]["low"] < 0.028 < best["interval"]["high"]


def test_a_battle_that_the_samples_do_not_decide_is_a_tie() -> None:
    errors, alike = np.array([[0.0, 0.300], [0.310, 0.0]]), np.array([0.1, 0.1])
    assert gam.gam(errors, alike, 0, 1, samples=1_000) is None
    assert gam.gam(errors, alike, 0, 1, samples=100_000) == 0


def test_the_battle_of_two_needs_judges_that_are_alike() -> None:
    errors = np.array([[0.0, 0.2], [0.5, 0.0]])  # judge 0 errs less on generator 1 than judge 1 on generator 0
    assert gam.gam(errors, np.array([0.10, 0.105]), 0, 1) == 0
    assert gam._ratio(0.10, 0.105) == pytest.approx(0.952, abs=1e-3) and gam._ratio(0.2, 0.5) == pytest.approx(0.4)
    assert gam.gam(errors, np.array([0.10, 0.105]), 1, 0) == 1
    assert gam.gam(errors, np.array([0.1, 0.4]), 0, 1) is None
    assert gam.gam(errors, np.zeros(2), 0, 1) == 0
    assert gam.gam(np.zeros((2, 2)), np.zeros(2), 0, 1) is None


def test_a_judge_that_says_the_same_of_all_is_named() -> None:
    players = [Player("a", 0), Player("b", 0), Player("c", 0)]
    verdict = gam2(np.array([[1.0, 1.0, 1.0], [0.3, 0.3, 0.4], [0.0, 0.0, 0.0]]), np.eye(3, dtype=bool))
    text = gam_table.table(players, verdict, np.array([0.0, 0.2, 1.0]), 10_000, 500)
    assert "the judge of member 0 of a calls everything real, and praises all" in text
    assert "the judge of member 0 of c calls everything fake" in text
    assert "of member 0 of b" not in text.split("the best by avg")[0]
    assert "10,000 samples" in text and "500 held-out" in text


def test_the_table_says_once_which_run_the_others_are_held_against() -> None:
    players = [Player("a", 0), Player("b", 0), Player("c", 0)]
    verdict = gam2(np.full((3, 3), 0.3), np.eye(3, dtype=bool))
    text = gam_table.table(players, verdict, np.full(3, 0.2), 10_000, 500)
    assert text.count("a is the baseline: the first run given\n") == 1
    assert text.index("a is the baseline") < text.index("b is undecided against a")
    alone = gam_table.table(
        players[:1], gam2(np.full((1, 1), 0.3), np.zeros((1, 1), bool)), np.full(1, 0.2), 10_000, 500
    )
    assert "baseline" not in alone


def test_each_kind_of_generator_has_a_baseline() -> None:
    players = [Player("a", 0, kind="x"), Player("b", 0, kind="x"), Player("b", 1, kind="y"), Player("c", 0, kind="y")]
    text = gam_table.table(players, gam2(np.full((4, 4), 0.3), np.eye(4, dtype=bool)), np.full(4, 0.2), 10_000, 500)
    assert "a (x) is the baseline: the first run given with this kind" in text
    assert "b (y) is the baseline: the first run given with this kind" in text


def test_of_equals_none_is_the_best() -> None:
    verdict = gam2(np.full((2, 2), 0.3), np.eye(2, dtype=bool))
    assert verdict.winner is None
    entry = gam.entry([Player("a", 0), Player("a", 1)], verdict, "a", np.zeros(2), 50)
    assert entry["best_member"] is None and entry["best_value"] is None and entry["value"] == pytest.approx(0.3)


def test_the_best_of_a_run_of_two_kinds_is_picked_by_the_same_judges() -> None:
    """Lenient judges praise a generator of their kind; by all judges the other one is better."""
    players = [Player("a", 0, kind="x"), Player("a", 1, kind="y"), Player("b", 0, kind="x"), Player("c", 0, kind="y")]
    errors = np.zeros((4, 4))
    errors[2, :2], errors[3, :2] = (0.2, 0.0), (0.9, 0.5)  # of b's strict judge, and of c's lenient one
    met = [met_matrix(players, True, [False] * 4, across) for across in (False, True)]
    verdict = gam2(errors, *met)
    assert verdict.average[:2].tolist() == [0.2, 0.5] and verdict.across[:2].tolist() == pytest.approx([0.55, 0.25])
    entry = gam.entry(players, verdict, "a", np.zeros(4), 50)
    assert entry["best_member"] == 0 and entry["best_value"] == pytest.approx(0.55)
    assert entry["best_by"] == "the judges of every kind that they did not meet"
    assert list(entry["per_member"].values()) == [0.2, 0.5]  # the numbers stay those of each kind's judges
    assert entry["by_judge"] == {"member 0 of b": [0.2, None], "member 0 of c": [None, 0.5]}
    assert "best_by" not in gam.entry(players, verdict, "b", np.zeros(4), 50)


def test_of_several_classes_none_is_the_best() -> None:
    """Members of different classes have different judges; of one class the better one is named."""
    errors = np.array([[0.0, 0, 0.1, 0.2], [0.0, 0, 0.3, 0.3], [0.1, 0.2, 0, 0], [0.3, 0.4, 0, 0]])
    for labels, best in (((0, 1, 0, 1), None), ((3, 3, 3, 3), 1)):
        players = [Player(run, m, label=label) for run, m, label in zip("aabb", (0, 1, 0, 1), labels, strict=True)]
        verdict = gam2(errors, met_matrix(players, True, [False] * 4))
        assert gam.entry(players, verdict, "a", np.zeros(4), 50)["best_member"] == best
        text = gam_table.table(players, verdict, np.full(4, 0.2), 10_000, 500)
        assert ("the best by avg is member 1 of a" in text) == (best is not None)


def test_judges_and_generators_of_several_seeds_are_told_apart() -> None:
    players = [Player("a", 0), Player("b", 0, herd=0, seed=6), Player("b", 0, herd=1, seed=7)]
    verdict = gam2(np.array([[0.0, 0, 0], [0.2, 0, 0], [0.8, 0, 0]]), met_matrix(players, True, [False] * 3))
    entry = gam.entry(players, verdict, "a", np.zeros(3), 50)
    assert entry["by_judge"] == {"member 0 of seed 6 of b": [0.2], "member 0 of seed 7 of b": [0.8]}
    assert entry["value"] == pytest.approx(0.5)
    assert list(gam.entry(players, verdict, "b", np.zeros(3), 50)["per_member"]) == ["0 of seed 6", "0 of seed 7"]


def test_the_interval_covers_what_was_simulated() -> None:
    """Error rates of two judges that err on the same samples: the worst case that it is made for."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        rate = (rng.random((2, 400)) < 0.3).mean(1)  # of two generators
        errors = np.stack([rate, rate])
        span = gam.interval(errors, np.ones((2, 2), bool), 400)
        assert span is not None
        inside += span["low"] <= 0.3 <= span["high"]
    assert 0.92 <= inside / 300 <= 0.98
