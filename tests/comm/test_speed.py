"""Members handed out by measured speed: only where machines are unlike, and never to a later end than equal shares."""

from __future__ import annotations

import random

import pytest

from ganherd.comm.backends.local import Local
from ganherd.comm.placement import ALIKE, shares, weights
from ganherd.comm.ranks import Ranks
from ganherd.recipe import recipe_file
from ganherd.runs.models import RanksRecord
from ganherd.training.ranks.balance import balanced, known


def test_ranks_that_are_nearly_alike_get_equal_shares() -> None:
    assert weights([100.0, 100.0 / ALIKE, 90.0], ["a", "b", "c"]) is None
    assert weights([100.0, 99.0 / ALIKE, 90.0], ["a", "b", "c"]) == [100.0, 99.0 / ALIKE, 90.0]


def test_noise_between_ranks_of_one_host_does_not_change_shares() -> None:
    """A rank that was disturbed while it measured gets what its equals get."""
    assert weights([100.0, 20.0, 100.0], ["a", "a", "a"]) is None
    assert weights([100.0, 20.0, 100.0, 40.0, 40.0, 5.0], ["a"] * 3 + ["b"] * 3) == [100.0] * 3 + [40.0] * 3


@pytest.mark.parametrize("rates", [[0.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_invalid_speeds_leave_shares_equal(rates: list[float]) -> None:
    assert weights(rates, ["a", "b"]) is None


def test_weighted_shares_never_finish_later_than_equal_ones() -> None:
    draw = random.Random(0)
    for _ in range(300):
        speeds = [draw.uniform(0.1, 10.0) for _ in range(draw.randint(2, 7))]
        members = draw.randint(len(speeds), 40)

        def end(counts: list[int], speeds: list[float] = speeds) -> float:
            return max(count / speed for count, speed in zip(counts, speeds, strict=True))

        found = weights(speeds, [str(rank) for rank in range(len(speeds))]) or [1.0] * len(speeds)
        assert end(shares(members, found)) <= end(shares(members, [1.0] * len(speeds))) + 1e-9


class Ranked(Local):
    """The first of several ranks, for what is decided without the others."""

    def __init__(self, size: int) -> None:
        self.world_size, self.hosts = size, ("here",) * size

    def _new_group(self, ranks: object) -> None:
        return None


def test_the_first_rank_has_a_member_however_slow_it_is() -> None:
    """It writes the run; any other that would only keep the others waiting becomes a spare."""
    recipe = recipe_file.load({"data": {"source": "digits"}, "herd": {"members": 4}})
    placed = Ranks.distribute(Ranked(3), recipe, 4, [0.001, 1.0, 0.001])
    assert [len(own) for own in placed.members_by_rank] == [1, 3, 0] and placed.weights == (0.001, 1.0, 0.001)


def test_one_process_is_never_balanced() -> None:
    assert balanced(Ranks.single_process(3), None) is None


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0, "2"], [0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, 10**400], "fast", {"0": 1.0}]
)
def test_damaged_weights_are_measured_again(weights: object) -> None:
    ranks = {"communicator": "mpi", "hosts": ["a", "b"], "members": [[0], [1]]}
    assert known(RanksRecord.parse({**ranks, "weights": weights}), ("a", "b")) == (False, None)
    for sound in ([1, 2.5], [1.0, 0.0]):
        assert known(RanksRecord.parse({**ranks, "weights": sound}), ("a", "b")) == (True, sound)
