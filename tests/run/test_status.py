"""Where a run stands, told by its folder alone; and extras that are not installed are missed before anything is made."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import ganherd
import little
from ganherd.run import loop, status, trackers


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    little.be_brief(monkeypatch)


def test_every_state_of_a_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, seen, dead = tmp_path / "run", [], []
    tick = loop.Trainer.tick

    def looking(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 10:
            seen.append(status.describe(run))
            os.kill(os.getpid(), signal.SIGTERM)
        if step == 17 and not dead:
            dead.append(step)
            raise little.Killed

    monkeypatch.setattr(loop.Trainer, "tick", looking)
    with pytest.raises(ganherd.Interrupted):
        little.train(run, little.recipe(tmp_path))
    running = seen[0]
    assert (running["state"], running["step"], running["steps"], running["members"]) == ("running", 9, 30, 3)
    assert len(running["losses"]["loss_g"]) == 3 and running["heartbeat"] >= 0

    def told() -> str:
        assert little.command("status", run) == 0
        return capsys.readouterr().out

    assert ": interrupted, step " in told() and f"resume it with: ganherd train --resume {run}" in told()
    with pytest.raises(little.Killed):
        little.resume(run)
    assert ": killed, step " in told() and f"resume it with: ganherd train --resume {run}" in told()
    little.resume(run)
    assert ": finished, step 30 of 30" in told() and "resume" not in told()
    assert little.command("status", run, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["state"] == "finished" and facts["step"] == facts["steps"] == 30 and facts["seconds_left"] is None


def test_alarms_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tick = loop.Trainer.tick

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 5 and not self.repairs[2]:
            self.herd.state["g.params"][2] = float("nan")

    monkeypatch.setattr(loop.Trainer, "tick", poison)
    little.train(tmp_path / "run", little.recipe(tmp_path, "9steps"))
    assert little.command("status", tmp_path / "run") == 0
    assert "step 6: member 2 (2)" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["tell", "rollback"])
def test_what_is_wrong_at_the_last_step_is_told_once(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the last step is also one at which records, pictures and checkpoints are due."""
    tick = loop.Trainer.tick

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 6 and not self.repairs[1]:
            self.herd.state["g.params"][1] = float("nan")
        if step >= 4:
            self.herd.state["g.params"][2] = 0.0

    monkeypatch.setattr(loop.Trainer, "tick", poison)
    settings = little.recipe(
        tmp_path, "6steps", sample_every=6, checkpoint_every=6, repair={"policy": policy}, watch={"every": 1}
    )
    little.train(tmp_path / "run", settings)
    told = [(line["event"], line.get("member")) for line in little.lines(tmp_path / "run" / "events.jsonl")]
    assert told.count(("nan", 1)) == 1 and told.count(("alarm", 2)) == 1
    assert told.count(("repair", 1)) == (policy == "rollback")


@pytest.mark.parametrize(
    ("setting", "extra"), [("run.tensorboard=true", "ganherd[tensorboard]"), ("run.wandb=offline", "ganherd[wandb]")]
)
def test_an_extra_that_is_not_installed_is_missed_before_anything_is_made(
    tmp_path: Path, setting: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    file = little.write_recipe(tmp_path, budget="3steps")
    assert little.command("train", file, "--run", tmp_path / "run", "--set", setting) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and extra in said
    assert not (tmp_path / "run").exists()


def test_trackers_see_what_the_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, dict[str, float]]] = []

    def fake(self: trackers.Trackers, folder: Any) -> None:
        self._write.append(lambda step, values: written.append((step, values)))

    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    monkeypatch.setattr(trackers.Trackers, "_tensorboard", fake)
    settings = little.recipe(tmp_path, "9steps", tensorboard=True)
    little.train(tmp_path / "run", settings)
    lines = little.lines(tmp_path / "run" / "metrics.jsonl")
    assert [step for step, _ in written] == [line["step"] for line in lines] == [3, 6, 9]
    assert [values["loss_g/2"] for _, values in written] == [line["loss_g"][2] for line in lines]
