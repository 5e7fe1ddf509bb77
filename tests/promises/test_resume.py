"""Promise 3: 2k steps equal k steps, a stop anywhere, a resume and k steps: bit for bit. See `test_kills` for kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import recipes
import run_files
import tiny_runs
import torch
from fake_clock import FakeClock

import ganherd
from ganherd.runs.folder import RunFolder
from ganherd.training import loop
from ganherd.training.closing_time import ClosingTime

EACH = [(net, engine) for net in ("small", "wcgan") for engine in ("fused", "loop")]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 steps of the little herd that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        tiny_runs.train(folder / "run", recipes.noise_recipe(folder))
    return folder / "run"


@pytest.fixture
def settings(undisturbed: Path) -> dict[str, Any]:
    """The recipe of the undisturbed run, its data included."""
    return recipes.noise_recipe(undisturbed.parent)


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Any) -> None:
    """Does something in the middle of a run, right after that step is computed."""
    tick = loop.Trainer.tick

    def acting(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == number:
            act()

    monkeypatch.setattr(loop.Trainer, "tick", acting)


def ask_to_stop(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGTERM) -> None:
    at_step(monkeypatch, step, lambda: os.kill(os.getpid(), number))


# -- a longer budget --------------------------------------------------------------------------------------------------


# 10 steps end between a record and a checkpoint, 14 on a checkpoint
@pytest.mark.further(but=["small-loop-10steps", "small-fused-14steps", "small-fused-10steps"])
@pytest.mark.parametrize(
    ("net", "engine", "half"), [*((*each, "10steps") for each in EACH), ("small", "fused", "14steps")]
)
def test_k_steps_and_k_resumed_steps_equal_2k_steps(tmp_path: Path, net: str, engine: str, half: str) -> None:
    tiny_runs.train(tmp_path / "whole", recipes.noise_recipe(tmp_path, "28steps", net, engine))
    tiny_runs.train(tmp_path / "halves", recipes.noise_recipe(tmp_path, half, net, engine))
    tiny_runs.resume(tmp_path / "halves", "28steps")
    # the first half ended with lines of its own, which a longer run does not have
    run_files.assert_same_run(tmp_path / "halves", tmp_path / "whole")
    assert RunFolder(tmp_path / "halves").recipe.train.budget == "28steps"


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path: Path, settings: Any, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", undisturbed)


def test_a_budget_below_what_is_done_is_refused_and_changes_nothing(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    before = run_files.snapshot(tmp_path / "run")
    assert tiny_runs.command("train", "--resume", tmp_path / "run", "--budget", "12steps", "-q") == 2
    assert "30 steps" in capsys.readouterr().err
    assert run_files.snapshot(tmp_path / "run") == before


# -- a polite stop ----------------------------------------------------------------------------------------------------


# the first step, before a record, on one, on a checkpoint, on both, and the last step
@pytest.mark.parametrize("step", [1, 5, 6, 7, 21, 30])
def test_a_stop_after_any_step_is_exact(
    tmp_path: Path, settings: Any, undisturbed: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = signal.SIGHUP if step == 5 else signal.SIGTERM  # a closed terminal is a polite stop, too
    with monkeypatch.context() as patch:
        ask_to_stop(patch, step, number)
        asked = f"{number.name} at step {step}.*resume it with: ganherd train --resume"
        with pytest.raises(ganherd.Interrupted, match=asked):
            tiny_runs.train(tmp_path / "run", settings)
    assert RunFolder(tmp_path / "run").info.state == "interrupted"
    assert run_files.steps(tmp_path / "run")[-1] == step
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.further(but=["small"])
@pytest.mark.parametrize("net", ["small", "wcgan"])
def test_a_stop_after_every_single_step_is_exact(tmp_path: Path, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial sums, and the state of every part of the step, are carried thirteen times."""
    tiny_runs.train(tmp_path / "whole", recipes.noise_recipe(tmp_path, "13steps", net))
    for step in range(1, 14):
        with monkeypatch.context() as patch, pytest.raises(ganherd.Interrupted):
            ask_to_stop(patch, step)
            if step == 1:
                tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "13steps", net))
            tiny_runs.resume(tmp_path / "run")
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", tmp_path / "whole")
    resumes = [
        line["step"] for line in run_files.json_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "resume"
    ]
    assert resumes == list(range(1, 14))


def test_a_second_ctrl_c_stops_at_once_and_costs_only_the_steps_since_the_checkpoint(
    tmp_path: Path, settings: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        at_step(patch, 12, twice)
        with pytest.raises(ganherd.Interrupted, match="at once.*resume it with"):
            tiny_runs.train(tmp_path / "run", settings)
    assert run_files.steps(tmp_path / "run")[-1] == 7
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", undisturbed)


def test_a_closed_terminal_is_ignored_under_nohup(
    tmp_path: Path, settings: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ask_to_stop(monkeypatch, 10, signal.SIGHUP)
        tiny_runs.train(tmp_path / "run", settings)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    run_files.assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_while_the_mixture_is_made_can_be_resumed(
    tmp_path: Path, settings: Any, undisturbed: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ganherd.training.finish.make_mixture", lambda *_: os.kill(os.getpid(), number))
        with pytest.raises(ganherd.Interrupted, match="the last step, which is saved; resume it with"):
            tiny_runs.train(tmp_path / "run", settings)
    assert RunFolder(tmp_path / "run").info.state == "interrupted"
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", undisturbed)


# -- a kill -----------------------------------------------------------------------------------------------------------


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path,
    settings: Any,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def die(*_: object) -> None:
        raise processes.Killed

    with monkeypatch.context() as patch, pytest.raises(processes.Killed):
        patch.setattr("ganherd.runs.checkpoint.save", die)
        tiny_runs.train(tmp_path / "run", settings)
    assert tiny_runs.command("train", "--resume", tmp_path / "run") == 0
    assert "it starts again from its first step" in capsys.readouterr().err
    run_files.assert_same_run(tmp_path / "run", undisturbed)


# -- what the run is, and what it is not ------------------------------------------------------------------------------


@pytest.mark.further
def test_engine_and_threads_are_the_recorded_ones(
    tmp_path: Path, settings: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    free = {**settings, "engine": {"device": "cpu"}}
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patch, pytest.raises(ganherd.Interrupted):
        ask_to_stop(patch, 10)
        tiny_runs.train(tmp_path / "run", free)
    recorded = RunFolder(tmp_path / "run").info.engine
    assert recorded.threads == 1

    seen: list[tuple[str, int]] = []
    made = loop.make_engine

    def watched(herd: Any, plan: Any) -> Any:
        seen.append((plan.name, torch.get_num_threads()))
        return made(herd, plan)

    monkeypatch.setattr(loop, "make_engine", watched)
    monkeypatch.setattr("ganherd.herd.engine.autotune.choose", lambda *_: pytest.fail("the engine is not chosen again"))
    torch.set_num_threads(2)
    tiny_runs.resume(tmp_path / "run")
    assert seen == [(recorded.name, 1)]


def test_another_recipe_is_shown_refused_and_changes_nothing(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    before = run_files.snapshot(tmp_path / "run")
    assert (
        tiny_runs.command("train", "--resume", tmp_path / "run", "--set", "optim.lr_g=0.5", "--set", "train.batch=4")
        == 2
    )
    said = capsys.readouterr().err
    assert "optim.lr_g: 0.0002 -> 0.5" in said and "train.batch: 8 -> 4" in said
    assert len(said.splitlines()) == 1
    assert run_files.snapshot(tmp_path / "run") == before


def test_other_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    with np.load(tmp_path / "data.npz") as data:
        x, y = data["x"].copy(), data["y"]
    x[0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "data.npz", x=x, y=y)
    before = run_files.snapshot(tmp_path / "run")
    assert tiny_runs.command("train", "--resume", tmp_path / "run") == 2
    assert "the data" in capsys.readouterr().err
    assert run_files.snapshot(tmp_path / "run") == before


# -- a budget of time -------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every step takes 0.1 s, where 0.01 s were measured: a budget of 3 s ends at its limit of 2 s."""
    FakeClock(step=0.1).install(monkeypatch, measured_step=0.01)
    monkeypatch.setattr(ClosingTime, "seconds", 1.0)


@pytest.mark.further(but=["10"])
@pytest.mark.usefixtures("slow_clock")
@pytest.mark.parametrize("checkpoint_every", [7, 10])  # the end between two checkpoints, and on one
def test_a_time_budget_ends_at_the_same_step_after_a_kill(
    tmp_path: Path, checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recipes.noise_recipe(tmp_path, "3s", checkpoint_every=checkpoint_every)
    tiny_runs.train(tmp_path / "whole", settings)
    assert run_files.steps(tmp_path / "whole")[-1] == 20

    def die(*_: object) -> None:
        raise processes.Killed

    with monkeypatch.context() as patch, pytest.raises(processes.Killed):
        patch.setattr("ganherd.training.finish.make_mixture", die)
        tiny_runs.train(tmp_path / "run", settings)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["budget"]["steps"] == 200
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", tmp_path / "whole")
    ends = [line for line in run_files.json_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "budget"]
    assert [(line["step"], line["planned"]) for line in ends] == [(20, 200)]
    tiny_runs.resume(tmp_path / "run")  # and the finished run goes no step further
    run_files.assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.further
@pytest.mark.usefixtures("slow_clock")
def test_a_time_budget_counts_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget does not restart at a resume: 8 steps before it and 12 after."""
    settings = recipes.noise_recipe(tmp_path, "3s")
    with monkeypatch.context() as patch, pytest.raises(ganherd.Interrupted):
        ask_to_stop(patch, 8)
        tiny_runs.train(tmp_path / "run", settings)
    tiny_runs.resume(tmp_path / "run")
    assert run_files.steps(tmp_path / "run")[-1] == 20
    tiny_runs.resume(tmp_path / "run", "4s")
    assert run_files.steps(tmp_path / "run")[-1] == 30
