"""Callbacks of users: all hooks are called at their time, an error names the callback, and members change only if it says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
import torch

import ganherd
from ganherd import UserError
from ganherd.runs import checkpoint
from ganherd.training.setup.assemble import assemble


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.chdir(tmp_path)


def state(run: ganherd.Run) -> dict[str, torch.Tensor]:
    return checkpoint.newest(run.folder.checkpoints, assemble(run.recipe).herd.nets)[0].state


def same(one: ganherd.Run, other: ganherd.Run) -> bool:
    first, second = state(one), state(other)
    return set(first) == set(second) and all(torch.equal(value, second[name]) for name, value in first.items())


class Listener(ganherd.Callback):
    """Note all calls, read the state, and disturb every global random generator."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_start(self, trainer: Any) -> None:
        self.calls.append(("start", trainer.step))

    def on_step_end(self, trainer: Any, step: int) -> None:
        torch.manual_seed(step)
        np.random.seed(step)
        torch.rand(3)
        assert all(value.sum() is not None for value in trainer.herd.state.values())
        self.calls.append(("step", step))

    def on_record(self, trainer: Any, record: Mapping[str, Any]) -> None:
        self.calls.append(("record", record["step"], len(record["loss_g"])))

    def on_meeting(self, trainer: Any) -> None:
        self.calls.append(("meeting", trainer.step))

    def on_alarm(self, trainer: Any, alarm: str, member: int, facts: Mapping[str, Any]) -> None:
        self.calls.append(("alarm", trainer.step, alarm, member, facts["name"]))

    def on_checkpoint(self, trainer: Any, step: int) -> None:
        self.calls.append(("checkpoint", step))

    def on_finish(self, trainer: Any, run: Any) -> None:
        self.calls.append(("finish", run.path.name, run.folder.info.state))

    def close(self) -> None:
        self.calls.append(("close",))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]


def test_every_hook_is_called_and_the_result_stays_the_same(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "14steps")
    listener = Listener()
    heard = ganherd.train(settings, run="heard", quiet=True, callbacks=[listener])
    plain = ganherd.train(settings, run="plain", quiet=True)
    assert same(heard, plain)
    lines = run_files.json_lines(heard.path / "metrics.jsonl")
    assert listener.of("start") == [(0,)] and listener.of("step") == [(step,) for step in range(1, 15)]
    assert listener.of("record") == [(line["step"], 3) for line in lines]
    assert listener.of("checkpoint") == [(0,), (7,), (14,)]
    assert listener.calls[-2:] == [("finish", "heard", "finished"), ("close",)]


def test_meetings_are_reported(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "12steps")
    settings["data"]["partition"] = "all"
    settings |= {"strategy": {"name": "gap", "gap": {"every": "4steps"}}, "herd": {"members": 3}}
    listener = Listener()
    run = ganherd.train(settings, run="run", quiet=True, callbacks=[listener])
    swaps = [event["step"] for event in run.events() if event["event"] == "swap"]
    assert swaps and set(swaps) <= {step for (step,) in listener.of("meeting")}


class Breaking(ganherd.Callback):
    """Make one member NaN."""

    changes_result = True

    def __init__(self, at: int = 5, member: int = 1) -> None:
        self.at, self.member = at, member

    def on_step_end(self, trainer: Any, step: int) -> None:
        if step == self.at:
            trainer.herd.state["g.params"][self.member] = torch.nan


def test_alarms_are_reported(tmp_path: Path) -> None:
    listener = Listener()
    run = ganherd.train(
        recipes.noise_recipe(tmp_path, "9steps"), run="run", quiet=True, callbacks=[Breaking(), listener]
    )
    events = [(event["step"], event["event"], event["member"]) for event in run.events() if event["event"] == "nan"]
    assert events and [call[:3] for call in listener.of("alarm") if call[1] == "nan"] == events
    assert listener.of("alarm")[0][3] == "member 1 (1)"


class Failing(ganherd.Callback):
    def __init__(self, hook: str, at: int) -> None:
        def fail(trainer: Any, *values: Any) -> None:
            if trainer.step >= at:
                raise ValueError("no such\ncolumn")

        self.hook = hook
        setattr(self, hook, fail)

    def implements(self, hook: str) -> bool:
        return hook == self.hook


@pytest.mark.further("on_stop", "on_train_end")
@pytest.mark.parametrize("hook", ["on_start", "on_step_end", "on_stop", "on_record", "on_checkpoint", "on_train_end"])
def test_an_error_names_the_callback_and_the_run_is_resumed_exactly(tmp_path: Path, hook: str) -> None:
    settings = recipes.noise_recipe(tmp_path, "14steps")
    first = 0 if hook == "on_start" else 14 if hook == "on_train_end" else 7
    with pytest.raises(UserError) as caught:
        ganherd.train(settings, run="failed", quiet=True, callbacks=[Failing(hook, first)])
    sentence = str(caught.value)
    assert sentence.startswith(f"the callback Failing failed in {hook} at step ")
    assert "(ValueError: no such)" in sentence and "--resume" in sentence and "\n" not in sentence
    run = ganherd.Run("failed")
    assert run.status().state == "interrupted" and "Failing" in (run.folder.info.reason or "")
    run.resume(quiet=True)
    whole = ganherd.train(settings, run="whole", quiet=True)
    assert same(run, whole)
    kept, wanted = (run_files.json_lines(one.path / "metrics.jsonl") for one in (run, whole))
    for line in (*kept, *wanted):
        line.update(seconds=0, rate=0)
    assert kept == wanted


def test_an_error_after_the_end_leaves_the_run_finished(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the callback Failing failed in on_finish at step 3"):
        ganherd.train(
            recipes.noise_recipe(tmp_path, "3steps"), run="run", quiet=True, callbacks=[Failing("on_finish", 0)]
        )
    assert ganherd.Run("run").status().state == "finished"


def test_an_error_in_close_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Leaking(ganherd.Callback):
        def close(self) -> None:
            raise OSError("gone")

    run = ganherd.train(recipes.noise_recipe(tmp_path, "3steps"), run="run", callbacks=[Leaking()])
    assert run.status().state == "finished"
    assert "note: the callback Leaking failed in close (OSError: gone)." in capsys.readouterr().err


class Silent(Breaking):
    changes_result = False


def test_a_callback_that_changes_members_silently_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="the callback Silent changed the members in on_step_end at step .*changes_result = True"
    ):
        ganherd.train(recipes.noise_recipe(tmp_path, "9steps"), run="run", quiet=True, callbacks=[Silent()])

    class Replacing(ganherd.Callback):
        def on_record(self, trainer: Any, record: Mapping[str, Any]) -> None:
            trainer.herd.state["g.params"] = trainer.herd.state["g.params"].clone()

    with pytest.raises(UserError, match="the callback Replacing changed the members in on_record"):
        ganherd.train(recipes.noise_recipe(tmp_path, "9steps"), run="other", quiet=True, callbacks=[Replacing()])


class Shrinking(ganherd.Callback):
    """Shrink the generators' weights after every step: a result of its own."""

    changes_result = True

    def __init__(self, factor: float = 0.9) -> None:
        self.factor, self.calls = factor, 0

    def on_step_end(self, trainer: Any, step: int) -> None:
        self.calls += 1
        trainer.herd.state["g.params"].mul_(self.factor)


@pytest.mark.further
def test_a_callback_that_changes_the_result_is_part_of_the_run(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "14steps")
    whole = ganherd.train(settings, run="whole", quiet=True, callbacks=[Shrinking()])
    plain = ganherd.train(settings, run="plain", quiet=True)
    assert not torch.equal(state(whole)["g.params"], state(plain)["g.params"])
    half = ganherd.train(settings, ["train.budget=7steps"], run="half", quiet=True, callbacks=[Shrinking(), Listener()])
    recorded = json.loads((half.path / "run.json").read_text())["callbacks"]
    assert [(each["name"], each["changes_result"]) for each in recorded] == [("Shrinking", True), ("Listener", False)]
    stranger = ganherd.Run("half")
    with pytest.raises(
        UserError, match="was trained with the callback Shrinking, which changes its result and is missing"
    ):
        stranger.resume("14steps", quiet=True)
    with pytest.raises(UserError, match="callback Shrinking, which changes its result and is another one now"):
        stranger.resume("14steps", callbacks=[Shrinking(0.8)], quiet=True)
    with pytest.raises(UserError, match="was started without the callback Shrinking, which changes its result"):
        plain.resume("21steps", callbacks=[Shrinking()], quiet=True)
    assert same(stranger.resume("14steps", callbacks=[Shrinking()], quiet=True), whole)  # the listener is not needed


def test_the_run_object_keeps_its_callbacks(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "14steps")
    whole = ganherd.train(settings, run="whole", quiet=True, callbacks=[Shrinking()])
    half = ganherd.train(settings, ["train.budget=7steps"], run="half", quiet=True, callbacks=[Shrinking()])
    assert same(half.resume("14steps", quiet=True), whole)


def test_a_callback_may_ask_for_stops(tmp_path: Path) -> None:
    class Regular(ganherd.Callback):
        every = 4
        steps: list[int] = []

        def on_stop(self, trainer: Any) -> None:
            self.steps.append(trainer.step)

    settings = recipes.noise_recipe(tmp_path, "14steps")
    stopping = ganherd.train(settings, run="stopping", quiet=True, callbacks=[Regular()])
    assert {4, 8, 12} <= set(Regular.steps)
    assert same(stopping, ganherd.train(settings, run="plain", quiet=True))


def test_a_hook_may_be_an_attribute_of_the_callback(tmp_path: Path) -> None:
    steps: list[int] = []
    callback = ganherd.Callback()
    callback.on_step_end = lambda trainer, step: steps.append(step)  # type: ignore[method-assign]
    ganherd.train("digits-wcgan", budget=2, callbacks=[callback], run=tmp_path / "run", quiet=True, finishers=())
    assert steps == [1, 2]


def test_a_misspelt_hook_is_refused(tmp_path: Path) -> None:
    class Steps(ganherd.Callback):
        def on_step_ends(self, trainer: Any, step: int) -> None: ...

    with pytest.raises(UserError, match=r"Steps.on_step_ends is not a hook \(did you mean 'on_step_end'\?\)"):
        ganherd.train("digits-wcgan", budget=2, callbacks=[Steps()], run=tmp_path / "run", quiet=True)


@pytest.mark.parametrize("every", [-3, "10steps", 2.5])
def test_stops_are_counted_in_steps(tmp_path: Path, every: Any) -> None:
    callback = ganherd.Callback()
    callback.every = every
    with pytest.raises(UserError, match=r"Callback.every must be a number of steps"):
        ganherd.train("digits-wcgan", budget=2, callbacks=[callback], run=tmp_path / "run", quiet=True)
