"""The settings that a sweep proposes."""

from __future__ import annotations

import math

import pytest

from ganherd.sweep.search_space import parse_dimension, propose, split
from ganherd.util.errors import UserError


def test_lists_are_combined_and_ranges_are_filled_evenly() -> None:
    lists = [parse_dimension("loss.name=hinge,minimax"), parse_dimension("train.ema=0.9,null,0.99")]
    assert len(propose(lists, None)) == 6 and propose(lists, None)[1] == {"loss.name": "hinge", "train.ema": None}
    some = propose(lists, 4)
    assert len(some) == 4 and all(one in propose(lists, None) for one in some)
    rate = parse_dimension("optim.lr_g=1e-5..1e-1")
    logs = sorted(math.log10(float(str(one["optim.lr_g"]))) for one in propose([rate], 32))
    assert len(logs) == 32 and all(-5 <= one <= -1 for one in logs)
    gaps = [b - a for a, b in zip([-5.0, *logs], [*logs, -1.0], strict=True)]
    assert max(gaps) < 3 * 4 / 32  # no part of the range is left out
    assert propose([rate], 8) == propose([rate], 8) != propose([rate], 8, seed=1)


def test_ranges_of_whole_numbers_give_whole_numbers() -> None:
    batches = [one["train.batch"] for one in propose([parse_dimension("train.batch=4..64")], 6)]
    assert all(isinstance(one, int) and 4 <= one <= 64 for one in batches) and len(set(batches)) == len(batches)


def test_trials_that_repeat_are_proposed_once_and_a_resumed_sweep_proposes_the_same() -> None:
    batch = [parse_dimension("train.batch=4..8")]
    few = propose(batch, 16)
    assert sorted(str(one["train.batch"]) for one in few) == ["4", "5", "6", "7", "8"]
    assert propose(batch, len(few)) == few  # a resume knows only how many there are
    assert len(propose([*batch, parse_dimension("optim.lr_g=1e-5..1e-2")], 16)) == 16


def test_settings_of_members_train_in_one_run_and_others_in_runs_of_their_own() -> None:
    assert split({"optim.lr_g": 0.1, "train.batch": 8}) == ({"optim.lr_g": 0.1}, {"train.batch": 8})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("optim.lr_g", "write a key"),
        ("optim.lr_g=", "write a key"),
        ("optim.lr_g=1e-3", "at least two"),
        ("optim.lr_g=1e-3,1e-3", "at least two"),
        ("optim.lr_g=1e-2..1e-5", "smaller to a larger"),
        ("optim.lr_g=1.2.3..4", "two numbers"),
        ("optim.lr_g=1e-5...1e-2", "two numbers"),
        ("optim.lr_g=..1", "two numbers"),
        ("loss.name=hinge,,minimax", "empty"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_dimension(text)


def test_commas_inside_of_brackets_belong_to_a_value() -> None:
    assert parse_dimension("optim.lr_g=[1, [2, 3]],[4, 5],6").values == ([1, [2, 3]], [4, 5], 6)


def test_a_key_is_varied_once() -> None:
    with pytest.raises(UserError, match="twice"):
        propose([parse_dimension("train.ema=0.9,0.99"), parse_dimension("train.ema=0.5,0.6")], None)
