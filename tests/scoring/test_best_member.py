"""`ganherd best`: the best generator of a herd, by a score or by GAM-II, saved as a mixture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.data.dataset import load
from ganherd.runs.folder import RunFolder
from ganherd.scoring import score


@pytest.fixture(scope="module")
def herd(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """Three members that share the data; the learning rate of the last is 0, so it stays as it was drawn."""
    settings = tiny_recipe(
        data,
        data={"partition": "all"},
        herd={"members": 3},
        optim={"lr_g": [2e-3, 1e-3, 0.0]},
        train={"budget": "60steps", "ema": None},
        engine={"name": "fused", "chunk": None},
        run={"watch": {"every": 0}, "checkpoint_every": 30},
    )
    folder = tmp_path_factory.mktemp("best") / "run"
    return ganherd.train(settings, run=folder, quiet=True, finishers=()).path


def test_the_member_with_the_best_score_is_saved(cli, herd: Path) -> None:
    answer = json.loads(cli("best", herd, "--by", "fid", "--network", "pixels", "-n", 60, "--json").out)
    (member,) = (one["member"] for one in answer["ensembles"][0]["members"])
    data = load(RunFolder.open(herd).recipe.data)
    values = score(ganherd.load(herd), data, ["fid"], 200, per="member")["fid"]["per_member"]
    assert values[str(member)] == min(values.values())  # they are far apart: other samples give the same order
    best = ganherd.load(answer["mixture"])
    assert Path(answer["mixture"]) == herd / "mixture-best" and set(best.sample(20).member.tolist()) == {member}
    alone = ganherd.load(herd).alone(member).sample(5, seed=3).x
    assert np.array_equal(best.sample(5, seed=3).x, alone)


def test_by_the_judgement_of_the_discriminators(cli, herd: Path) -> None:
    answer = json.loads(cli("best", herd, "--by", "gam2", "-n", 40, "--json").out)
    winner = ganherd.load(herd).winner
    assert winner is not None and (winner.member, winner.replica) == (answer["member"], answer["replica"])
    assert set(ganherd.load(answer["mixture"]).sample(10).member.tolist()) == {answer["member"]}
    assert "leave --network out" in cli("best", herd, "--by", "gam2", "--network", "pixels").sentence


@pytest.mark.parametrize("by", ["fid", "gam2"])
def test_a_herd_with_one_member_for_each_class_has_no_best(cli, run, by: str) -> None:
    assert "one class" in cli("best", run, "--by", by).sentence


def test_classes_with_several_members_have_a_best_one_each(cli, tmp_path: Path) -> None:
    """A class keeps its share of the samples."""
    settings = tiny_recipe(
        tiny_data(tmp_path / "data.npz"),
        herd={"per_class": 2},
        train={"budget": "10steps"},
    )
    run = ganherd.train(settings, run=tmp_path / "run", quiet=True, finishers=()).path
    answer = json.loads(cli("best", run, "--by", "fid", "--network", "pixels", "-n", 60, "--json").out)
    assert [one["class"] for one in answer["ensembles"]] == list(ganherd.load(run).labels)
    winners = [[one["member"] for one in each["members"]] for each in answer["ensembles"]]
    assert [[member // 2 for member in each] for each in winners] == [[0], [1], [2]]
    before, best = ganherd.load(run), ganherd.load(answer["mixture"])
    shares = [np.bincount(mixture.label_of, mixture.weights) for mixture in (before, best)]
    np.testing.assert_allclose(*shares)
    together = cli("ensemble", run, "--network", "pixels", "-n", 60, "-q").out
    assert all(f"class {label}:" in together for label in before.labels)
