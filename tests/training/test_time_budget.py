"""A time budget counts from the start of the command to the saved mixture."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import processes
import pytest
import recipes
import run_files
import tiny_runs
import yaml
from fake_clock import FakeClock
from further_tests import EACH_VALUE

import ganherd
from ganherd.herd.engine.engines import Engine
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.training import loop, session
from ganherd.training.setup import dry_run
from ganherd.training.setup.start_times import recorded_starts
from ganherd.util import process_clock


class IdleSteps(Engine):
    """An engine whose steps compute nothing, since only their number matters here."""

    def _train_block(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.setattr(loop, "make_engine", IdleSteps)
    monkeypatch.chdir(tmp_path)


def quick_recipe(folder: Path, budget: str, **run: Any) -> dict[str, Any]:
    """Return a recipe with tiny nets, whose mixture re-estimates batch norm."""
    recipe = recipes.noise_recipe(folder, budget, net="tiny", **{"watch": {"every": 20}, **run})
    recipe["nets"]["generator"] = {**recipe["nets"]["generator"], "batch_norm": True}
    return recipe


def seconds_of(clock: FakeClock, settings: dict[str, Any], run: str = "run") -> float:
    """Train, and return the seconds from the call to the saved mixture."""
    began = clock.now
    tiny_runs.train(Path(run), settings)
    return clock.saved_at - began


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize(
    "clock",
    [
        FakeClock(step=0.25),  # a tolerance of 3 % is then less than five steps
        FakeClock(start=20.0),
        FakeClock(start=1.0, step=0.7, checkpoint=2.0, mixture=1.5),
        FakeClock(start=3.0, step=0.2, checkpoint=0.0, mixture=5.0),
    ],
)
@pytest.mark.parametrize("measured", [0.1, 1.0, 10.0])  # the rate before the training, in proportion
def test_the_mixture_is_saved_when_the_budget_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, measured: float
) -> None:
    clock = FakeClock(**{**vars(clock), "now": 1000.0})
    clock.install(monkeypatch, measured_step=measured * clock.step)
    assert seconds_of(clock, quick_recipe(tmp_path, "40s", checkpoint_every=20)) == pytest.approx(40, rel=0.03)
    folder = RunFolder(tmp_path / "run")
    assert folder.info.step == folder.info.budget.steps == folder.metrics()[-1]["step"] > 1
    assert ganherd.load(folder.path).step == folder.info.step


def test_ranks_and_blocks_end_at_the_stop_that_is_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot end between two stops. The next record would come 10 s later."""
    monkeypatch.setattr(loop.Trainer, "_ends_anywhere", False)
    clock = FakeClock(step=0.5)
    clock.install(monkeypatch)
    every = {"record_every": 20, "checkpoint_every": 0, "watch": {"every": 0}}
    assert seconds_of(clock, quick_recipe(tmp_path, "50s", **every)) == pytest.approx(50, rel=0.03)


def test_a_gpu_that_lags_behind_the_host_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has sent 30 steps of 2 s to the device, and 1 s has passed."""
    trainer = loop.Trainer.__new__(loop.Trainer)
    trainer.prepared = type("Prepared", (), {"herd": type("Herd", (), {"device": type("Gpu", (), {"type": "cuda"})})})
    trainer.state = type("State", (), {"seconds_before": 100.0})
    clock = FakeClock()
    monkeypatch.setattr(loop, "time", clock)
    trainer._began, trainer._departed, trainer._departed_at = clock.now, 50, 100.0
    trainer._step_seconds, trainer._ticked = 2.0, 80
    clock.now += 1.0
    assert trainer._seconds_when_done() == 160.0
    trainer.prepared.herd.device.type = "cpu"
    assert trainer._seconds_when_done() == 101.0


@pytest.fixture
def two_phases(tmp_path: Path) -> dict[str, Any]:
    one = quick_recipe(tmp_path, "30steps")
    one = {**one, "data": {**one["data"], "partition": "all"}, "herd": {"members": 1}}
    Path("one.yaml").write_text(yaml.safe_dump(one))
    whole = quick_recipe(tmp_path, "60s")
    return {**whole, "herd": {"first": {"recipe": "one.yaml", "share": 0.75}}}


@pytest.mark.parametrize("start", [1.0, 8.0])
def test_two_phases_have_one_budget(
    monkeypatch: pytest.MonkeyPatch, two_phases: dict[str, Any], start: float, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock(start=start, step=0.3, checkpoint=0.2, mixture=0.3)
    clock.install(monkeypatch)
    began = clock.now
    ganherd.train(two_phases, run="run", finishers=())
    assert clock.saved_at - began == pytest.approx(60, rel=0.03)
    first, second = RunFolder(Path("run-first")).info, RunFolder(Path("run")).info
    assert first.seconds / (first.seconds + second.seconds) == pytest.approx(0.75, abs=0.03)
    ((used, whole),) = re.findall(r"Mixture saved after (\S+) s of the (\S+) s budget", capsys.readouterr().err)
    assert whole == "60" and float(used) == pytest.approx(clock.saved_at - began, abs=0.06)


def test_a_budget_that_is_too_short_for_two_phases_is_reported_before_the_first(
    monkeypatch: pytest.MonkeyPatch, two_phases: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    FakeClock(start=29.0, mixture=0.5).install(monkeypatch)
    ganherd.train(two_phases, run="run", finishers=())
    lines = capsys.readouterr().err.splitlines()
    note, second = (
        next(number for number, line in enumerate(lines) if words in line)
        for words in ("note: a budget of 1 min is too short: all but the training takes about 1 min", "second phase")
    )
    assert note < second and "--budget 130s or more" in lines[note]


@pytest.mark.further
def test_a_second_phase_gets_its_share_after_a_finished_first_one(
    monkeypatch: pytest.MonkeyPatch, two_phases: dict[str, Any]
) -> None:
    """The first command is killed between the phases; the second one trains the second phase for its 15 s."""
    clock = FakeClock(step=0.3)
    clock.install(monkeypatch)
    run, calls = session.Session.run, []

    def killed(self: session.Session) -> Any:
        calls.append(self)
        if len(calls) == 2:
            raise processes.Killed
        return run(self)

    with monkeypatch.context() as patch, pytest.raises(processes.Killed):
        patch.setattr(session.Session, "run", killed)
        ganherd.train(two_phases, run="run", quiet=True, finishers=())
    clock.now += 1000
    began = clock.now
    ganherd.train(two_phases, run="run", quiet=True, finishers=())
    assert clock.saved_at - began == pytest.approx(15, rel=0.03)


def test_a_budget_that_is_over_before_the_first_step_trains_one_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeClock(start=7.0).install(monkeypatch)
    ganherd.train(quick_recipe(tmp_path, "2s"), run="run", finishers=())
    output = capsys.readouterr().err
    assert "note: a budget of 2 s is too short: all but the training takes about 8 s here, so only one step" in output
    assert "give it --budget 20s or more" in output
    assert RunFolder(Path("run")).info.step == 1 and ganherd.load("run").step == 1
    assert re.search(r"of the 2 s budget, with 1 step[.;]", output)


def test_a_time_budget_ends_by_the_clock_of_the_call_not_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    clock.install(monkeypatch)
    began = clock.now - 10.0  # of the command
    session.train(recipe_file.load(quick_recipe(tmp_path, "30s")), "run", quiet=True, began=began)
    assert clock.saved_at - began == pytest.approx(30, rel=0.03)


def test_only_the_budget_that_has_ended_the_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeClock().install(monkeypatch)
    tiny_runs.train(tmp_path / "run", quick_recipe(tmp_path, "5s"))
    steps = RunFolder(tmp_path / "run").info.step
    ganherd.resume(tmp_path / "run", [f"train.budget={steps + 3}steps"], finishers=())
    assert "Mixture saved" not in capsys.readouterr().err and RunFolder(tmp_path / "run").info.step == steps + 3
    ganherd.resume(tmp_path / "run", ["train.budget=9s"], finishers=())
    assert re.search(r"Mixture saved after (8\.[6-9]|9\.[0-2]) s of the 9 s budget", capsys.readouterr().err)


def test_the_end_is_an_event_with_the_planned_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    clock.install(monkeypatch, measured_step=0.2)
    seconds_of(clock, quick_recipe(tmp_path, "10s"))
    (event,) = [line for line in run_files.json_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "budget"]
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert event["steps"] == info["step"] > 1.9 * event["planned"]


# -- when the command was started ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the age of a process is read from /proc")
def test_a_command_begins_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_clock, "_LONGEST_START", float("inf"))
    began = process_clock.process_began()
    assert began <= process_clock._IMPORTED <= time.monotonic()
    monkeypatch.setattr(process_clock, "_IMPORTED", began - 3.0)  # in a parent, before this process was forked
    assert process_clock.process_began() == began - 3.0


def test_a_process_that_was_a_script_before_begins_with_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    later = process_clock.process_began() + 1000.0
    monkeypatch.setattr(process_clock, "_IMPORTED", later)
    assert process_clock.process_began() == later


# -- what a dry run estimates -------------------------------------------------------------------------------------------


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "start_times.json"


def dry_clock(monkeypatch: pytest.MonkeyPatch, choice: list[float]) -> FakeClock:
    """Let the engine be chosen in these seconds, call by call, and a step take 0.1 s."""
    clock, choose = FakeClock(), dry_run.autotune.choose

    def slow_choice(*words: Any) -> Any:
        clock.now += choice.pop(0)
        return choose(*words)

    clock.install(monkeypatch)
    monkeypatch.setattr(dry_run, "time", clock)
    monkeypatch.setattr(dry_run.autotune, "choose", slow_choice)
    monkeypatch.setattr(dry_run, "measure_rate", lambda herd, *_, **__: 10.0 * herd.num_members)
    return clock


@pytest.mark.usefixtures("own_cache")
def test_a_dry_run_estimates_a_cold_and_a_warm_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_file.load(quick_recipe(tmp_path, "60s"))
    clock = dry_clock(monkeypatch, [7.0, 1.0, 1.0])  # measured, and then from the cache
    facts = dry_run.describe(recipe, began=clock.now - 2.0)
    assert (facts["cold"]["start_seconds"], facts["warm"]["start_seconds"]) == (9.0, 3.0)
    assert facts["warm"]["steps"] == facts["steps"] == facts["cold"]["steps"] + 60
    assert facts["warm"]["seconds"] == pytest.approx(60, abs=0.2) == facts["cold"]["seconds"]
    text = dry_run.measured(facts)
    assert "first step after 3 s" in text and "first step after 9 s" in text
    facts = dry_run.describe(recipe, began=clock.now - 4.0)  # the first start is remembered, this one is warm
    assert (facts["cold"]["start_seconds"], facts["warm"]["start_seconds"]) == (9.0, 5.0)


@pytest.mark.usefixtures("own_cache")
def test_a_dry_run_of_two_phases_estimates_the_whole_command(
    monkeypatch: pytest.MonkeyPatch, two_phases: dict[str, Any]
) -> None:
    dry_clock(monkeypatch, [1.0, 1.0])
    facts = dry_run.describe(recipe_file.load(two_phases))
    assert facts["seconds"] == 60 and facts["warm"]["seconds"] == pytest.approx(60, abs=0.2)
    assert facts["steps"] == pytest.approx(10 * 13, abs=8)


def test_the_first_start_and_the_last_one_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    clock = FakeClock()
    clock.install(monkeypatch)
    settings = quick_recipe(tmp_path, "5steps")
    recipe = recipe_file.load(settings, ["train.budget=9steps"])  # the length does not matter
    assert recorded_starts(recipe) == []
    for clock.start in (4.0, 3.0, 2.0):
        tiny_runs.train(tmp_path / str(clock.start), settings)
    assert recorded_starts(recipe) == [4.0, 2.0]
    own_cache.write_text('{"broken": 3}')
    assert recorded_starts(recipe) == []
