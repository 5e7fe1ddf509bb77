"""Scores of classes, members and neighbourhoods, from one pass over samples of all members; replicas as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.features.extract import moments
from ganherd.features.material import EACH, ScoringContext
from ganherd.features.real_features import RealFeatures
from ganherd.metrics.frechet import distance
from ganherd.metrics.statistics.seeds import together
from ganherd.scoring import METRICS, ScoredNeighbourhood, score, score_seeds
from ganherd.util.errors import UserError
from ganherd.util.meter import TimeLeft, timed

Replay = Callable[..., Any]
EVERYTHING = ["label_accuracy", "histogram", "diversity", "fid", "kid", "coverage", "classifier_score", "memorisation"]


def broken(samples: Any) -> Any:
    """Member 3 makes noise."""
    x = samples.x.copy()
    noise = samples.member == 3
    x[noise] = np.random.default_rng(0).integers(0, 255, x[noise].shape)
    return dataclasses.replace(samples, x=x)


@pytest.fixture(scope="module")
def ring_of_three() -> list[ScoredNeighbourhood]:
    return [ScoredNeighbourhood([m, (m + 1) % 10, (m - 1) % 10]) for m in range(10)]


def test_every_score_of_every_neighbourhood(
    digits: Any, replay: Replay, ring_of_three: list[ScoredNeighbourhood]
) -> None:
    mixture = replay(digits, change=broken)
    found = score(mixture, digits, EVERYTHING, samples=500, per="neighbourhood", neighbourhoods=ring_of_three)
    assert [n for n, _ in mixture.calls].count(EACH) == 10  # every member was drawn once, for all scores
    for name in EVERYTHING:
        entry = found[name]
        assert list(entry["per_neighbourhood"]) == [str(m) for m in range(10)], name
        # the ball of a neighbour needs as many of the data: never more are claimed than were used
        assert all(0 < n <= 3 * EACH for n in entry["per_neighbourhood_samples"].values()), name
        assert entry["fewest"] == min(entry["per_neighbourhood_samples"].values())
    for name, worst in (("label_accuracy", min), ("fid", max), ("kid", max), ("coverage", min)):
        values = found[name]["per_neighbourhood"]
        assert worst(values, key=values.get) in ("2", "3", "4"), name
        assert all(values[m] != pytest.approx(values["7"], rel=0.2) for m in ("2", "3", "4")), name


def test_a_neighbourhood_is_the_mixture_of_its_members_by_hand(digits: Any, replay: Replay) -> None:
    reference = RealFeatures(digits, "pixels")
    cells = [ScoredNeighbourhood([0, 1]), ScoredNeighbourhood([4, 5], [3.0, 1.0]), ScoredNeighbourhood([7], [2.0])]
    material = ScoringContext(replay(digits), digits, 300, against=reference, per="neighbourhood", neighbourhoods=cells)
    found = score(replay(digits), digits, ["fid"], 300, reference=reference, per="neighbourhood", neighbourhoods=cells)
    fake, drawn = material.member_features, material.by_member
    assert np.bincount(drawn.member).tolist() == [EACH] * 10
    rows = {m: np.flatnonzero(drawn.member == m) for m in range(10)}
    wanted = [  # of each as many as the one of a single member has
        (np.concatenate([rows[0][: EACH // 2], rows[1][: EACH // 2]]), [0, 1]),
        (np.concatenate([rows[4][: 3 * EACH // 4], rows[5][: EACH // 4]]), [4, 5]),
        (rows[7], [7]),
    ]
    for number, (index, classes) in enumerate(wanted):
        own = moments(fake.x[torch.from_numpy(np.sort(index))])
        real = moments(reference.real.x[torch.from_numpy(np.flatnonzero(np.isin(digits.y, classes)))])
        assert found["fid"]["per_neighbourhood"][str(number)] == pytest.approx(float(distance(own, real)), rel=1e-6)
        assert found["fid"]["per_neighbourhood_samples"][str(number)] == len(index)


def test_neighbourhoods_of_unlike_weights_are_compared_on_equally_many_samples(digits: Any, replay: Replay) -> None:
    weights = [[0.87, 0.1, 0.03], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.29, 0.3, 0.41]]
    cells = [ScoredNeighbourhood([m, m + 1, m + 2], own) for m, own in enumerate(weights)]
    found = score(replay(digits), digits, ["fid", "kid"], 300, per="neighbourhood", neighbourhoods=cells)
    for name in ("fid", "kid"):
        assert set(found[name]["per_neighbourhood_samples"].values()) == {int(EACH / 0.87)}
        assert found[name]["fewest"] == int(EACH / 0.87)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (None, "need the lists"),
        ([ScoredNeighbourhood([])], "neighbourhood 0 lists"),
        ([ScoredNeighbourhood([0]), ScoredNeighbourhood([1, 1])], "neighbourhood 1 lists"),
        ([ScoredNeighbourhood([10])], "from 0 to 9"),
        ([ScoredNeighbourhood([0, 1], [1.0])], "a weight"),
        ([ScoredNeighbourhood([0, 1], [0.0, 0.0])], "not all 0"),
    ],
)
def test_neighbourhoods_that_are_none(digits: Any, replay: Replay, cells: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        score(replay(digits), digits, ["fid"], 50, per="neighbourhood", neighbourhoods=cells)


def test_members_by_every_score(digits: Any, replay: Replay) -> None:
    found = score(replay(digits, change=broken), digits, EVERYTHING, samples=300, per="member")
    for name in EVERYTHING:
        assert set(found[name]["per_member"]) == {str(m) for m in range(10)}, name
    assert found["label_accuracy"]["per_member"]["3"] < 0.5 < 0.9 < found["label_accuracy"]["per_member"]["4"]
    assert found["histogram"]["per_member"]["3"] > 0.5 > 0.1 > found["histogram"]["per_member"]["4"]
    assert found["diversity"]["per_member"]["4"] == pytest.approx(1, abs=0.15)


def test_enough_free_samples_serve_all_members(digits: Any, replay: Replay) -> None:
    mixture = dataclasses.replace(replay(digits), weights=np.full(10, 0.1))
    score(mixture, digits, ["diversity", "fid"], samples=5000, per="member")
    assert [n for n, label in mixture.calls if label is None] == [5000]


def test_points_of_neighbourhoods_capture_modes(ring: Any, replay: Replay) -> None:
    cells = [ScoredNeighbourhood([0, 1]), ScoredNeighbourhood([2, 3, 4])]
    found = score(replay(ring), ring, ["modes"], 50, per="neighbourhood", neighbourhoods=cells)["modes"]
    assert found["per_neighbourhood"] == {"0": 2, "1": 3} and set(found["per_neighbourhood_samples"].values()) == {2500}


def test_a_set_with_some_labels_is_judged_by_those(digits: Any) -> None:
    from ganherd.scoring.two_sets import GivenSet

    y = digits.y_test.copy()
    y[::2] = -1
    given: Any = GivenSet("half", digits.x_test, y, digits.labels)
    found = score(given, digits, ["label_accuracy"], samples=len(y))["label_accuracy"]
    assert found["samples"] == (y >= 0).sum() and found["value"] > 0.95


def test_fewer_samples_than_asked_for_are_no_score(digits: Any, replay: Replay) -> None:
    short = replay(digits, change=lambda s: dataclasses.replace(s, x=s.x[1:], y=s.y[1:], member=s.member[1:]))
    with pytest.raises(RuntimeError, match="100 samples were asked for and 99 came"):
        score(short, digits, ["fid"], samples=100)


# -- replicas -----------------------------------------------------------------------------------------------------


def entry(value: float | None, replica: int, **more: Any) -> dict[str, Any]:
    return {"value": value, "samples": 100 + replica, "network": "pixels", "seed": 0, "replica": replica, **more}


def test_what_stands_beside_a_mean_is_a_mean_too() -> None:
    each = [
        entry(6, 0, of=8, high_quality=0.5, per_member={"0": 4, "1": 6}, per_member_samples={"0": 9, "1": 9}, best_member=1),
        entry(8, 1, of=8, high_quality=0.9, per_member={"0": 8, "1": 2}, per_member_samples={"0": 9, "1": 8}, best_member=0),
        entry(7, 2, of=8, high_quality=0.7, per_member={"0": 0, "1": 1}, per_member_samples={"0": 9, "1": 9}, best_member=1,
              warning="few"),
    ]  # fmt: skip
    found = together(each, [5, 6, 7])
    assert (found["value"], found["of"], found["samples"]) == (7.0, 8, 100)  # the fewest are claimed
    assert found["high_quality"] == pytest.approx(0.7) and found["per_member"] == {"0": 4.0, "1": 3.0}
    assert found["per_member_samples"] == {"0": 9, "1": 8} and found["warning"] == "few"
    assert "best_member" not in found and "replica" not in found
    assert found["per_seed"] == [6, 8, 7] and found["std"] == 1.0 and found["seeds"] == [5, 6, 7]
    assert found["interval"]["high"] == pytest.approx(7 + 4.302653 / 3**0.5)


def test_an_interval_of_replicas_stays_within_what_is_possible() -> None:
    each = [entry(v, r) for r, v in enumerate((0.6, 0.9))]
    assert together(each, [0, 1])["interval"]["high"] > 1
    assert together(each, [0, 1], METRICS["recall"].bounds)["interval"] == {
        "low": 0.0, "high": 1.0, "level": 0.95, "how": "Student's t over 2 seeds, cut at 0 and 1", "cut": True,
    }  # fmt: skip


def test_a_replica_without_a_value() -> None:
    found = together([entry(None, 0), entry(2.0, 1)], [0, 1])
    assert found["value"] == 2.0 and found["std"] is None and "interval" not in found
    assert together([entry(None, 0), entry(None, 1)], [0, 1])["value"] is None


def test_seeds_of_a_mixture(ring: Any, replay: Replay) -> None:
    mixture = dataclasses.replace(replay(ring), replicas=2)
    mixture.seeds = [3, 4]  # type: ignore[attr-defined]
    told: list[str] = []
    found = score_seeds(mixture, ring, ["modes", "ais"], samples=50, progress=told.append)
    assert found["modes"]["seeds"] == [3, 4] and found["modes"]["per_seed"] == [8, 8]
    assert found["skipped"].keys() == {"ais"} and "seed 2 of 2" in told


# -- time left ----------------------------------------------------------------------------------------------------


def test_progress_has_the_time_left_and_does_not_chatter() -> None:
    told: list[str] = []
    assert list(timed(range(50), told.append, "things")) == list(range(50)) and told == []
    clock = TimeLeft(told.append, "things", 50, seconds=0)
    for done in (0, 10, 50):
        clock.at(done)
    assert told == ["things: 10 of 50, 0 s left"]
    assert list(timed([1, 2], None, "nothing")) == [1, 2]
