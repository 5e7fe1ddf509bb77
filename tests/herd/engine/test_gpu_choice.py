"""On a GPU the engine is chosen by rule; nets of a user's own are tried once, and what fails has an alternative."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recipes import tiny_data, tiny_recipe
from torch import nn

from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Plan, StackedHerd
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble

GRAPH, FUSED = Plan("graph", 3, 1, "cuda"), Plan("fused", 3, 1, "cuda")


class OwnNet(nn.Module):
    """A net that ganherd does not know."""


@pytest.fixture
def herd(tmp_path: Path) -> StackedHerd:
    return assemble(recipe_file.load(tiny_recipe(tiny_data(tmp_path / "data.npz")))).herd


@pytest.fixture
def tried(herd: StackedHerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], tuple]:
    """Choose an engine for own nets on a GPU whose trials fail for these reasons, by the name of the engine."""
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_candidates", lambda herd, settings: [GRAPH])
    monkeypatch.setattr(herd.d, "module", OwnNet())

    def choose(failures: dict[str, str]) -> tuple[Plan | None, list[str], list[str]]:
        trials: list[str] = []
        notes: list[str] = []

        def failure(herd: StackedHerd, plan: Plan, report: object) -> str:
            trials.append(plan.name)
            return failures.get(plan.name, "")

        monkeypatch.setattr(autotune, "_failure", failure)
        plan = autotune._tried(herd, autotune.Settings(), notes.append, lambda done, total: None)
        return plan, trials, notes

    return choose


def test_packaged_nets_need_no_trial(herd: StackedHerd, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not herd.has_own_nets
    monkeypatch.setattr(herd.d, "module", OwnNet())
    assert herd.has_own_nets


def test_a_trial_that_succeeds_is_not_repeated(tried: Callable[[dict[str, str]], tuple]) -> None:
    assert tried({}) == (GRAPH, ["graph"], [])
    assert tried({}) == (GRAPH, [], [])


def test_nets_that_cannot_be_captured_are_fused_and_the_reason_is_reported(
    tried: Callable[[dict[str, str]], tuple],
) -> None:
    for _ in range(2):  # a failure is not remembered
        plan, trials, notes = tried({"graph": "it reads a number on the host"})
        assert (plan, trials) == (FUSED, ["graph", "fused"])
        assert "it reads a number on the host" in notes[0]


def test_nets_that_cannot_be_fused_either_are_left_to_the_loop(tried: Callable[[dict[str, str]], tuple]) -> None:
    assert tried({"graph": "no", "fused": "no"}) == (None, ["graph", "fused"], [])


def test_changed_code_of_a_net_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nets.py"
    monkeypatch.setattr(inspect, "getfile", lambda kind: str(file))
    file.write_text("one")
    before = autotune._source_digest([OwnNet()])
    assert autotune._source_digest([OwnNet()]) == before
    file.write_text("other")
    assert autotune._source_digest([OwnNet()]) != before
    file.unlink()  # as of a class in a notebook
    assert autotune._source_digest([OwnNet()]) != autotune._source_digest([OwnNet()])
    assert autotune._source_digest([nn.Linear(1, 1)]) == autotune._source_digest([nn.Linear(1, 1)])


@pytest.mark.parametrize(("chunk", "resident", "name"), [(3, True, "graph"), (2, True, "graph"), (3, False, "fused")])
def test_the_rule_takes_a_graph_if_the_data_is_on_the_device(
    herd: StackedHerd, chunk: int, resident: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(herd, "device", torch.device("cuda"))
    monkeypatch.setattr(type(herd.feed), "resident", resident)
    plans = autotune._candidates(herd, autotune.Settings(chunk=chunk))
    assert [plan.name for plan in plans] == [name]
