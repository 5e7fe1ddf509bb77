"""Who swaps with whom in GAP: drawn from the seed alone, fair, and written down."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from ganherd.comm.backends.local import Local
from ganherd.comm.communicator import Placement
from ganherd.herd import rng
from ganherd.recipe import recipe_file
from ganherd.recipe.strategy.gap_config import GapConfig as Settings
from ganherd.strategies.gap.gap import Gap, count_meetings, pairs, swapped_tensors
from ganherd.strategies.gap.paced import PacedGap
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.util.errors import UserError
from ganherd.viz.charts import draw_pair_counts

# what two members, three, … did at the swaps 1 to 4 of seed 0, worked out by hand: see `by_hand`
KNOWN = {
    2: [[(0, 1)], [(0, 1)], [(0, 1)], [(0, 1)]],
    3: [[(0, 2)], [(0, 1)], [(1, 2)], [(0, 2)]],
    4: [[(0, 2), (1, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)], [(0, 3), (1, 2)]],
}


def by_hand(seed: int, number: int, members: int, stay: set[int] = frozenset()) -> set[frozenset[int]]:
    """The rule in other words: everyone draws a number; whose turn it is sits out; the two lowest pair, and so on."""
    left = {slot: rng.key(seed, rng.PAIRING, number, slot) for slot in range(members) if slot not in stay}
    if len(left) % 2 == 1:
        turn = sorted(left)[number % len(left)]
        left.pop(turn)
    found = set()
    while left:
        a = min(left, key=left.__getitem__)
        left.pop(a)
        b = min(left, key=left.__getitem__)
        left.pop(b)
        found.add(frozenset((a, b)))
    return found


@pytest.mark.parametrize("members", [2, 3, 4, 7])
def test_the_schedule_is_that_of_a_hand_written_reference(members: int) -> None:
    for seed in (0, 1, 2**40):
        for number in range(1, 30):
            assert {frozenset(pair) for pair in pairs(seed, number, members)} == by_hand(seed, number, members)
    if members in KNOWN:
        assert [pairs(0, number, members) for number in range(1, 5)] == KNOWN[members]


@pytest.mark.parametrize("members", [2, 3, 4, 7, 16])
def test_pairs_are_disjoint_and_a_swap_is_an_involution(members: int) -> None:
    for number in range(1, 50):
        drawn = pairs(3, number, members)
        busy = [slot for pair in drawn for slot in pair]
        assert len(drawn) == members // 2
        assert len(set(busy)) == len(busy)
        partner = dict(drawn) | {b: a for a, b in drawn}
        assert all(partner[partner[slot]] == slot != partner[slot] for slot in busy)


@pytest.mark.parametrize(("members", "stay"), [(3, ()), (7, ()), (4, (2,)), (7, (0, 6))])
def test_members_of_an_odd_herd_sit_out_in_turn(members: int, stay: tuple[int, ...]) -> None:
    able = [slot for slot in range(members) if slot not in stay]
    for first in (1, 5, 8):
        idle = [
            {slot for slot in able} - {slot for pair in pairs(0, first + k, members, stay) for slot in pair}
            for k in range(len(able))
        ]
        assert all(len(one) == 1 for one in idle)
        assert sorted(slot for one in idle for slot in one) == able  # in so many swaps on end, everyone once


def test_those_that_stay_never_swap_and_too_few_do_not_either() -> None:
    for number in range(1, 20):
        assert not {1, 4} & {slot for pair in pairs(0, number, 6, {1, 4}) for slot in pair}
        assert {frozenset(pair) for pair in pairs(0, number, 6, {1, 4})} == by_hand(0, number, 6, {1, 4})
        assert pairs(0, number, 3, {0, 2}) == pairs(0, number, 3, {0, 1, 2}) == []


def test_all_pairs_are_equally_probable_and_seeds_have_their_own() -> None:
    counts = Counter(pair for number in range(1, 3001) for pair in pairs(0, number, 4))
    assert set(counts) == set(combinations(range(4), 2))
    assert all(abs(count - 1000) < 4 * np.sqrt(3000 * 2 / 9) for count in counts.values())
    assert [pairs(0, k, 7) for k in range(20)] != [pairs(1, k, 7) for k in range(20)]


def test_swapped_tensors_follow_the_travels_setting() -> None:
    names = ["g.params", "g.ema", "g.ema.t", "g.adam.m", "g.buffers.1.running_mean", "d.params", "d.adam.m", "d.adam.v", "d.adam.t",
             "d.buffers.2.running_var", "set.lr_g", "set.lr_d", "set.beta1", "set.loss", "set.seed", "set.slot"]  # fmt: skip
    assert swapped_tensors(names, "d", "weights") == ["d.params"]
    assert swapped_tensors(names, "g", "weights") == ["g.params", "g.ema", "g.ema.t"]
    assert set(swapped_tensors(names, "d", "all")) == {n for n in names if n.startswith("d.")} | {"set.lr_d"}
    assert set(swapped_tensors(names, "g", "all")) == {n for n in names if n.startswith("g.")} | {"set.lr_g"}


def test_a_run_too_short_for_a_swap_says_so() -> None:
    recipe = recipe_file.load("r15-gap4")
    (told,) = recipe.strategy.settings.never_due({"every": 300, "warmup": 50}, 349)
    assert told.startswith("no swap is due: the first would be at step 350, and the run has 349;")
    assert recipe.strategy.settings.never_due({"every": 300, "warmup": 50}, 350) == []
    paced = recipe_file.load("r15-gap4", ["strategy.gap.pace=[1, 0.5, 0.5, 0.25]"])
    (told,) = paced.strategy.settings.never_due({"every": 300, "warmup": 50}, 699)  # the fastest waits for another
    assert "at step 700, and the run has 699;" in told
    assert paced.strategy.settings.never_due({"every": 300, "warmup": 50}, 700) == []


# -- when ---------------------------------------------------------------------------------------------------------------


def meetings(every: int, warmup: int, last: int, **settings: object) -> list[int]:
    strategy = Gap(None, Settings(**settings), {"every": every, "warmup": warmup}, among(4))  # type: ignore[arg-type]
    return [step for step in range(last + 1) if strategy.meets_at(step)]


def among(members: int) -> MemberRanks:
    return MemberRanks(Local(), Placement((tuple(range(members)),)), members)


def test_swaps_come_at_multiples_after_the_warm_up() -> None:
    assert meetings(5, 0, 20) == [5, 10, 15, 20]
    assert meetings(5, 3, 20) == [8, 13, 18]
    assert meetings(5, 10, 20) == [15, 20]
    assert meetings(1, 0, 3) == [1, 2, 3]
    assert meetings(0, 0, 100) == []  # never: the arm without swaps


def paced(pace: list[float], every: int, warmup: int = 0, stay: list[int] | None = None) -> PacedGap:
    settings = Settings(pace=pace, stay=stay or [])
    return PacedGap(None, settings, {"every": every, "warmup": warmup}, among(len(pace)))  # type: ignore[arg-type]


def test_at_their_own_pace_members_meet_when_two_are_ready() -> None:
    assert paced([1.0, 1.0, 0.5, 0.1], 10).next_after(0) == 10
    assert paced([1.0, 0.5, 0.5, 0.1], 10).next_after(0) == 20  # the fast one waits for another
    assert paced([1.0, 0.29], 29).next_after(0) == 100  # exactly, where floats would say 101
    assert paced([1.0, 1.0, 0.5], 10, warmup=4).next_after(0) == 14  # of their own steps
    assert paced([1.0, 0.5, 0.1], 10, stay=[0]).next_after(0) == 100
    assert paced([1.0, 0.5], 10, stay=[0]).next_after(0) is None
    assert paced([1.0, 0.5], 10).next_after(25) == 26  # two that are ready do not wait


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("strategy.gap.pace=[1, 0.5]", "lists 2 speeds, but 4 members meet"),
        ("strategy.gap.pace=[0.5, 0.5, 0.5, 0.25]", "is 0.5 for the fastest member, which takes every step of the run"),
        ("strategy.gap.stay=[4]", "names slot 4, but 4 members have the slots 0 to 3"),
        ("strategy.gap.stay=[0, 1, 2]", "leaves 1 of 4 members to swap, and a swap takes two"),
        ("strategy.gap.stay=[0, 1, 2, 3]", "leaves 0 of 4 members"),
        ("herd.members=1", "gap needs at least two members"),
        ("data.partition=by-class", "each sees another class"),
    ],
)
def test_impossible_gap_settings_are_refused(change: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        recipe_file.load("ring8-gap4", [change])


# -- who met whom -------------------------------------------------------------------------------------------------------


def swap(step: int, *drawn: list[int], what: str = "discriminators") -> dict[str, object]:
    return {"step": step, "event": "swap", "what": what, "pairs": list(drawn)}


def test_who_met_whom_follows_the_nets_through_the_swaps() -> None:
    events = [swap(10, [0, 1]), swap(30, [1, 2]), {"step": 100, "event": "finish"}]
    # generator 0: d0, then d1; generator 1: d1, d0, d2; generator 2: d2, then d0
    assert count_meetings(events, 3).tolist() == [[10, 90, 0], [20, 10, 70], [70, 0, 30]]
    # the same with generators on the move: the discriminators are told by the slots
    moved = [swap(10, [0, 1], what="generators"), swap(30, [1, 2], what="generators")]
    assert count_meetings(moved, 3, steps=100).tolist() == [[10, 20, 70], [90, 10, 0], [0, 70, 30]]
    assert count_meetings([], 2, steps=5).tolist() == [[5, 0], [0, 5]]
    assert count_meetings(events, 3, steps=40).sum(1).tolist() == [40] * 3


def test_who_met_whom_follows_repairs() -> None:
    start = [
        {"step": 0, "event": "checkpoint"},
        swap(10, [0, 1]),
        {"step": 20, "event": "checkpoint"},
        swap(20, [0, 1]),
    ]
    back = {"step": 30, "event": "repair", "member": 0, "policy": "rollback", "from_step": 20}
    # at step 20 the checkpoint was written before the swap: member 0 has discriminator 1 again
    assert count_meetings([*start, back], 2, steps=40).tolist() == [[20, 20], [10, 30]]
    fresh = {"step": 30, "event": "repair", "member": 0, "policy": "reseed"}
    assert count_meetings([*start[:2], fresh], 2, steps=40).tolist() == [[20, 20], [30, 10]]
    copy = {"step": 30, "event": "repair", "member": 0, "policy": "neighbour", "from_member": 1}
    assert count_meetings([*start[:2], copy], 2, steps=40).tolist() == [[10, 20], [40, 10]]


def test_the_picture_names_every_slot_and_its_share() -> None:
    figure = draw_pair_counts(np.array([[30, 70], [70, 30]]))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(texts) == ["30", "30", "70", "70"]
    assert list(draw_pair_counts(np.eye(40, dtype=int)).axes[0].texts) == []  # too many for words
