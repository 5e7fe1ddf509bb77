"""Where a run stands, told by its folder alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import processes
import pytest
import recipes
import run_files
import tiny_runs

import ganherd
from ganherd.comm.heartbeat import Heartbeat
from ganherd.runs import run_status, status_text
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.models import EngineRecord, EventRecord
from ganherd.training import loop


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def test_every_state_of_a_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, seen, dead = tmp_path / "run", [], []
    tick = loop.Trainer.tick

    def looking(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 10:
            seen.append(run_status.describe(run))
            os.kill(os.getpid(), signal.SIGTERM)
        if step == 17 and not dead:
            dead.append(step)
            raise processes.Killed

    monkeypatch.setattr(loop.Trainer, "tick", looking)
    with pytest.raises(ganherd.Interrupted):
        tiny_runs.train(run, recipes.noise_recipe(tmp_path))
    running = seen[0]
    assert (running.state, running.step, running.steps, running.members) == ("running", 9, 30, 3)
    assert len(running.losses["loss_g"]) == 3 and running.heartbeat >= 0

    def told() -> str:
        assert tiny_runs.command("status", run) == 0
        return capsys.readouterr().out

    assert ": interrupted, step " in told() and f"resume it with: ganherd train --resume {run}" in told()
    with pytest.raises(processes.Killed):
        tiny_runs.resume(run)
    killed = told()
    assert ": killed, step " in killed and killed.endswith(f"resume it with: ganherd train --resume {run}\n")
    saved = max(saved_steps(RunFolder(run).checkpoints))
    assert re.search(rf"saved at step {saved}: a resume repeats the \d+ steps? after it", killed)
    RunFolder(run).write_info(ranks={"communicator": "torch", "hosts": ["a", "a"], "members": [[0, 1], [2]]})
    assert told().endswith(f"resume it with: ganherd train --resume {run} --ranks 2\n")
    RunFolder(run).write_info(ranks={"communicator": "mpi", "hosts": ["a", "b"], "members": [[0, 1], [2]]})
    assert told().endswith(f"resume it with: mpiexec -n 2 ganherd train --resume {run}\n")
    RunFolder(run).write_info(ranks=None)
    tiny_runs.resume(run)
    assert ": finished, step 30 of 30" in told() and "resume" not in told()
    assert tiny_runs.command("status", run, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["state"] == "finished" and facts["step"] == facts["steps"] == 30 and facts["seconds_left"] is None


def test_where_no_lock_can_be_asked_for_signs_of_life_tell_and_else_it_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "6steps"))
    folder = RunFolder(tmp_path / "run")
    folder.write_info(state="running")
    assert run_status.describe(folder.path).state == "killed"
    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert run_status.describe(folder.path).state == "running"  # its records are a moment old
    for path in (folder.metrics_path, folder.events_path, folder.info_path):
        os.utime(path, (1000, 1000))
    seen = run_status.describe(folder.path)
    assert seen.state == "unknown"
    told = status_text.text(seen)
    assert ": running or killed, which is not known (" in told
    assert f"if no process trains it any more, resume it with: ganherd train --resume {folder.path}" in told
    with Heartbeat(folder.path / "ranks", 0, 1) as heart:
        heart.note("processing")
        while not (folder.path / "ranks" / "rank-000.json").exists():
            time.sleep(0.01)
        assert run_status.describe(folder.path).state == "running"


def test_a_run_that_torchrun_starts_again_is_said_to_be_restarting(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    folder = RunFolder(tmp_path / "run")
    folder.write_info(state="restarting")
    told = status_text.text(run_status.describe(folder.path))
    assert ": restarting (a rank was lost, and torchrun starts all of them again), step 3" in told
    assert "resume it with" not in told
    os.utime(folder.info_path, (1000, 1000))  # nothing came of it
    assert run_status.describe(folder.path).state == "interrupted"


def test_alarms_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tick = loop.Trainer.tick

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 5 and not self.state.repairs[2]:
            self.herd.state["g.params"][2] = float("nan")

    monkeypatch.setattr(loop.Trainer, "tick", poison)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "9steps"))
    assert tiny_runs.command("status", tmp_path / "run") == 0
    assert "step 6: member 2 (2)" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["tell", "rollback"])
def test_what_is_wrong_at_the_last_step_is_told_once(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the last step is also one at which records, pictures and checkpoints are due."""
    tick = loop.Trainer.tick

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 6 and not self.state.repairs[1]:
            self.herd.state["g.params"][1] = float("nan")
        if step >= 4:
            self.herd.state["g.params"][2] = 0.0

    monkeypatch.setattr(loop.Trainer, "tick", poison)
    settings = recipes.noise_recipe(
        tmp_path, "6steps", sample_every=6, checkpoint_every=6, repair={"policy": policy}, watch={"every": 1}
    )
    tiny_runs.train(tmp_path / "run", settings)
    told = [(line["event"], line.get("member")) for line in run_files.json_lines(tmp_path / "run" / "events.jsonl")]
    assert told.count(("nan", 1)) == 1 and told.count(("alarm", 2)) == 1
    assert told.count(("repair", 1)) == (policy == "rollback")


def test_many_alarms_are_told_in_a_few_lines_with_what_followed() -> None:
    told = [
        {"step": 10 * k, "event": "alarm", "what": "dead_critic", "member": k, "name": f"member {k}"} for k in range(9)
    ]
    told += [
        {"step": 95, "event": "calm", "what": "dead_critic", "member": k, "name": f"member {k}"} for k in range(1, 9)
    ]
    told += [{"step": 99, "event": "repair", "policy": "reseed", "member": 0, "name": "member 0"}]
    told += [{"step": 100, "event": "nan", "member": 4, "name": "member 4"}]
    events = [EventRecord.parse(line) for line in told]
    facts = run_status.RunStatus(
        run="r", state="running", step=100, steps=200, rate=50.0, seconds_left=8, members=9, ranks=[],
        engine=EngineRecord(name="fused", chunk=9, threads=1, device="cpu"), host="h", heartbeat=1.0, losses={}, profile={},
        staleness={}, alarms=events, alarms_before=0, active_alarms=run_status.active_alarms(events),
    )  # fmt: skip
    lines = status_text.text(facts).splitlines()
    assert lines[2] == "… 9 before these in events.jsonl" and len(lines) == 3 + 10 + 1
    assert "step 95: member 8 dead critic is over" in lines and "step 99: member 0 repair (reseed)" in lines
    assert lines[-2:] == ["step 100: member 4 nan", "not well now: member 4 (nan)"]


def test_a_run_without_a_record_has_no_rate(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    status = run_status.describe(tmp_path / "run")
    assert "member-steps/s" in status_text.text(status)
    assert "member-steps/s" not in status_text.text(replace(status, rate=0.0))
    assert "\n1 member on " in status_text.text(replace(status, members=1))


def test_a_rank_that_is_late_by_a_factor_is_named(tmp_path: Path) -> None:
    """By what a step takes it without its waiting for others: all of them make the same steps in the same time."""
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    folder = RunFolder(tmp_path / "run")
    folder.write_info(
        state="running", ranks={"communicator": "torch", "hosts": ["a"] * 4, "members": [[0], [1], [2], []]}
    )
    for rank, seconds in enumerate([0.10, 0.26, 0.12, 0.0]):  # the last one is a spare
        facts = {"step": 3, "rate": 40.0, "step_seconds": seconds, "bytes_sent": 2048, "bytes_received": 4096}
        with Heartbeat(folder.path / "ranks", rank, 4, [rank] if rank < 3 else []) as heart:
            heart.note("processing" if rank < 3 else "inactive", **facts)
    with folder.lock():
        seen = run_status.describe(folder.path)
    assert [rank.slower for rank in seen.ranks] == [0.53, 2.36, 0.67, None]
    told = status_text.text(seen).splitlines()
    host = seen.ranks[1].beat.host
    assert f"the others wait for: rank 1 on {host}, which is late by a factor of 2.4" in told
    (line,) = [line for line in told if line.startswith(f"rank 1 on {host}: ")]
    assert "member 1, step 3, 40 member-steps/s" in line and "2.0 KiB sent, 4.0 KiB received" in line
