"""Two processes never train in one run folder; and a process that is gone, however it went, holds nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import recipes
import tiny_runs
import warm_python

from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError


@pytest.mark.further
def test_the_second_process_is_refused_and_the_lock_dies_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = recipes.write_recipe(tmp_path, budget="100000steps"), tmp_path / "run"
    process = warm_python.start("train", file, "--run", run, "-q")
    try:
        end = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert tiny_runs.command("status", run) == 0
        assert ": running, " in capsys.readouterr().out
        for words in (("--resume", run), ("--resume", run, "--budget", "5steps"), (file, "--run", run)):
            assert tiny_runs.command("train", *words) == 2
            said = capsys.readouterr().err
            assert len(said.splitlines()) == 1
            assert "another process is training" in said or "exists already" in said
    finally:
        assert warm_python.kill(process) == -signal.SIGKILL
        process.communicate()
    assert tiny_runs.command("status", run) == 0
    said = capsys.readouterr().out
    assert ": killed, " in said and f"resume it with: ganherd train --resume {run}" in said
    with RunFolder(run).lock():
        pass


def test_of_two_processes_in_one_new_folder_only_one_gets_the_lock(tmp_path: Path) -> None:
    """Both may find it empty; only one gets the lock."""
    first, second = RunFolder.create(tmp_path / "run"), RunFolder.create(tmp_path / "run")
    with first.lock(), pytest.raises(UserError, match="another process is training"):
        second.lock()
    with second.lock():
        pass


def test_a_file_system_without_locks_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unable)
    with RunFolder.create(tmp_path / "run").lock() as handle:
        assert not handle.closed
