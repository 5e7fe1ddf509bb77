"""Promises for several members per class: members meet within their class, and layers may be shared between classes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import run_files
import tiny_runs
import torch

import ganherd
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.strategies.with_share import WithShare
from ganherd.training import loop
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import make_strategy
from promises import narrow, test_cellular
from promises.plain_grid import PlainGrid
from promises.separate import SeparateGan
from promises.test_fused_equals_separate import herd_of
from promises.test_gap import difference, exchange, train
from promises.test_ranks import assert_same_herd, launch
from promises.test_share import average

SHARE = {"generator": ["layers.0"], "discriminator": ["layers.0"]}
TORUS = {
    "grid": [2, 2],
    "iteration": "4steps",
    "fitness": {"samples": 16},
    "mutation": {"strength": 0.3},
    "mixing": {"when": "iteration", "samples": 32, "generations": 3, "network": "pixels"},
}
PAIR = {**TORUS, "grid": [1, 2]}
GAP = {"every": "3steps"}
CASES: dict[str, dict[str, Any]] = {  # of three classes
    "independent": {"herd": {"per_class": 2}},
    "gap": {"herd": {"per_class": 3, "seeds": 2}, "strategy": {"name": "gap", "gap": GAP}},
    "torus": {"herd": {"per_class": 4}, "strategy": {"name": "cellular", "cellular": TORUS}},
    "best of a torus": {
        "herd": {"per_class": 2, "seeds": 2},
        "strategy": {"name": "cellular", "cellular": {**PAIR, "mixing": {**TORUS["mixing"], "keep": "best"}}},
    },
    "share": {"herd": {"per_class": 2}, "strategy": {"share": {**SHARE, "every": "4steps"}}},
    "gap and share": {
        "herd": {"per_class": 2},
        "strategy": {"name": "gap", "gap": GAP, "share": {**SHARE, "every": "4steps"}},
    },
    "paced gap and share": {
        "herd": {"per_class": 2},
        "strategy": {"name": "gap", "gap": {**GAP, "pace": [1.0, 0.5]}, "share": {**SHARE, "every": "4steps"}},
    },
    "torus and share": {
        "herd": {"per_class": 2},
        "strategy": {"name": "cellular", "cellular": PAIR, "share": {**SHARE, "every": "2steps"}},
    },
    "a neighbour's weights": {
        "herd": {"per_class": 2},
        "run": {"repair": {"policy": "neighbour", "diverged": 1.4}},
    },
}
STOPPED = ["gap and share", "paced gap and share", "torus and share"]  # also trained with stops, up to step 13


def write_data(folder: Path) -> Path:
    path, random = folder / "classes.npz", np.random.default_rng(0)
    if not path.exists():
        np.savez(path, x=random.integers(0, 256, (60, 1, 6, 6), np.uint8), y=np.repeat([0, 1, 2], [30, 18, 12]))
    return path


def recipe(folder: Path, case: str) -> dict[str, Any]:
    """Two meetings at least; swaps and averages fall on the same step for the first time at step 12."""
    budget = "14steps" if case in STOPPED else "11steps"
    settings = {"train": {"precision": "float64", "budget": budget}, "run": {"watch": {"every": 3}}}
    classes = {"data": {"partition": "by-class", "diet": 1.0, "holdout": 0.0}}
    change = CASES[case]
    run = {**settings["run"], **change.get("run", {})}
    return narrow.recipe(write_data(folder), classes, settings, change, {"run": run})


# -- fused equals separate ----------------------------------------------------------------------------------------------


def herd(folder: Path, per_class: int, strategy: dict[str, Any], net: str = "wcgan") -> PreparedHerd:
    rates = [1e-3 * (k + 1) for k in range(per_class)]
    sections = {"optim": {"lr_g": rates, "lr_d": rates[::-1]}, "train": {"ema": 0.9}, "strategy": strategy}
    return herd_of(folder, net, herd={"per_class": per_class}, **sections)


@pytest.mark.further
def test_members_of_a_class_see_its_rows_in_their_own_order(tmp_path: Path) -> None:
    assembly = herd(tmp_path, 2, {})
    assert assembly.label.tolist() == [0, 0, 1, 1, 2, 2] and assembly.count.tolist() == [9, 9, 4, 4, 7, 7]
    assert [assembly.slot_name(m) for m in (0, 3)] == ["member 0 (0.0)", "member 3 (1.1)"]
    assert assembly.herd.state["set.lr_g"].tolist() == [1e-3, 2e-3] * 3
    batches = [assembly.herd.feed.batch_at(slice(m, m + 1), SeparateGan(assembly, m).base, 0)[0] for m in (0, 1)]
    assert not torch.equal(*batches)
    alone = [SeparateGan(assembly, member) for member in range(6)]
    train(assembly, 5)
    for gan in alone:
        gan.train(5)
    assert difference(assembly, alone) < 1e-9


@pytest.mark.further(but=["all"])
@pytest.mark.parametrize("travels", ["weights", "all"])
def test_swaps_within_classes_and_shared_layers_between_them_equal_separate_gans(tmp_path: Path, travels: str) -> None:
    share = {"generator": ["layers.0"], "discriminator": ["layers.3"]}
    strategy = {"name": "gap", "gap": {"every": "3steps", "travels": travels}, "share": {**share, "every": "2steps"}}
    assembly = herd(tmp_path, 4, strategy)
    alone = [SeparateGan(assembly, member) for member in range(12)]
    events = train(assembly, 9)
    swaps = {event["step"]: event["pairs"] for event in events if "pairs" in event}
    shares = [event["step"] for event in events if "pairs" not in event]
    assert list(swaps) == [3, 6] and shares == [2, 4, 6, 8]
    assert all(a // 4 == b // 4 for pairs in swaps.values() for a, b in pairs)
    inside = [[(s, a % 4, b % 4) for s, pairs in swaps.items() for a, b in pairs if a // 4 == k] for k in range(3)]
    assert all(len(pairs) == 4 for pairs in inside) and inside[0] != inside[2]  # each class draws its own pairs
    for step in range(9):
        for a, b in swaps.get(step, []):
            exchange(alone[a], alone[b], "discriminators", travels)
        if step in shares:  # after the swap of the same step
            average(alone, share)
        for gan in alone:
            gan.train(1, step)
    assert difference(assembly, alone) < 1e-9


@pytest.mark.further
@pytest.mark.parametrize("selection", [True, False])
def test_the_torus_of_each_class_equals_one_that_is_trained_cell_by_cell(tmp_path: Path, selection: bool) -> None:
    settings = test_cellular.settings(tmp_path, grid=[2, 2], selection=selection, fitness={"samples": 16})
    settings["data"] = {"source": str(write_data(tmp_path)), "holdout": 0.0}
    settings["herd"] = {"per_class": 4}
    grids = [PlainGrid(test_cellular.made(settings)[0], 2, 2, first=4 * k) for k in range(3)]
    for grid in grids:
        grid.run(test_cellular.ITERATIONS, test_cellular.SPAN)
    assembly, strategy, _ = test_cellular.train(settings)
    trained = {**assembly.herd.state, "fitness.g": strategy.fitness[:, 0], "fitness.d": strategy.fitness[:, 1]}
    for k, grid in enumerate(grids):
        for name, wanted in grid.state().items():
            torch.testing.assert_close(trained[name][4 * k : 4 * k + 4], wanted, rtol=1e-9, atol=1e-9)


def test_layers_are_averaged_after_the_tournaments_of_the_same_step(tmp_path: Path) -> None:
    settings = recipe(tmp_path, "torus and share")
    assembly = assemble(recipe_file.load(settings))
    strategy = make_strategy(assembly, {"iteration": 4, "share": 2})
    assert isinstance(strategy, WithShare)
    assert [strategy.next_after(step) for step in (0, 2, 3, 4)] == [2, 4, 4, 6]
    list(strategy.open(0))
    assert list(strategy.close(2)) == []  # of the torus, which does not meet there
    assert [name for name, _ in strategy.close(4, continues=True)] == ["replacement", "mixture"]
    assert [name for name, _ in strategy.open(4)] == ["tournament", "share"]
    first = assembly.herd.d.param_sizes[0]
    shared = assembly.herd.state["d.params"][:, :first]
    assert torch.equal(shared, shared[:1].expand(6, -1))


# -- ranks do not matter ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(brief: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for case in CASES:
        tiny_runs.train(folder / case, recipe(folder, case))
    events = {case: {line["event"] for line in RunFolder(folder / case).events()} for case in CASES}
    assert "swap" in events["gap"] and "replacement" in events["torus"] and "repair" in events["a neighbour's weights"]
    assert {"swap", "share"} <= events["gap and share"] & events["paced gap and share"]
    assert {"replacement", "share"} <= events["torus and share"]
    copies = [line for line in RunFolder(folder / "a neighbour's weights").events() if line["event"] == "repair"]
    assert all(line["member"] // 2 == line["from_member"] // 2 for line in copies)
    return folder


def assert_equal_runs(run: Path, other: Path) -> None:
    assert_same_herd(run, other)
    weights = [
        np.array(json.loads((path / "mixture" / "mixture.json").read_text())["weights"]) for path in (run, other)
    ]
    assert np.allclose(*weights, atol=1e-9)


@pytest.mark.further(but=["forked-2"])
@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        ("forked", 2),
        pytest.param("mpi", 4, marks=pytest.mark.mpi),
        ("forked", 5),
        pytest.param("torch", 3, marks=pytest.mark.long),
        pytest.param("forked", 7, marks=pytest.mark.long),
    ],
)
def test_the_same_herd_on_any_number_of_ranks(engine: str, ranks: int, alone: Path, tmp_path: Path) -> None:
    code, said = launch(engine, ranks, [["begin", recipe(alone, case), str(tmp_path / case)] for case in CASES])
    assert code == 0, said
    for case in CASES:
        assert_equal_runs(tmp_path / case, alone / case)


@pytest.mark.further
def test_ranks_have_whole_classes_as_far_as_their_number_allows(alone: Path, tmp_path: Path) -> None:
    """12 members of three classes on two ranks: six each, so that one class of three is cut."""
    code, said = launch("forked", 2, [["begin", recipe(alone, "torus"), str(tmp_path / "run")]])
    assert code == 0, said
    ranks = RunFolder(tmp_path / "run").info.ranks
    assert ranks is not None and [list(own) for own in ranks.members] == [list(range(6)), list(range(6, 12))]


@pytest.mark.further
def test_a_run_stopped_on_two_ranks_resumes_on_three(alone: Path, tmp_path: Path) -> None:
    cases = ["gap and share", "torus and share", "best of a torus"]
    code, said = launch("forked", 2, [["stop", recipe(alone, case), str(tmp_path / case)] for case in cases])
    assert code == 0, said
    code, said = launch("forked", 3, [["resume", [], str(tmp_path / case)] for case in cases])
    assert code == 0, said
    for case in cases:
        assert_equal_runs(tmp_path / case, alone / case)


# -- resume is exact ----------------------------------------------------------------------------------------------------


@pytest.mark.further(but=["torus and share"])
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("case", STOPPED)
def test_a_run_that_is_stopped_anywhere_resumes_exactly(
    case: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a meeting of both kinds, between two of them, and killed, so that it resumes from an older checkpoint."""
    tick, run = loop.Trainer.tick, tmp_path / "run"

    def stop_at(at: int, is_killed: bool) -> None:
        def acting(self: loop.Trainer, step: int) -> None:
            tick(self, step)
            if step == at and is_killed:
                raise processes.Killed
            if step == at:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(loop.Trainer, "tick", acting)

    for at, is_killed in [(2, False), (4, False), (7, True), (9, False), (12, False), (13, True)]:
        stop_at(at, is_killed)
        with pytest.raises((ganherd.Interrupted, processes.Killed)):
            if run.exists():
                tiny_runs.resume(run)
            else:
                tiny_runs.train(run, recipe(alone, case))
    monkeypatch.setattr(loop.Trainer, "tick", tick)
    tiny_runs.resume(run)
    run_files.assert_same_run(run, alone / case)
