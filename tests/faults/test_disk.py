"""A disk that is full, or may not be written: nothing is lost, one sentence says so, and what is resumable ends with 75."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recipes
import run_files
import tiny_runs
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.runs import checkpoint, records
from ganherd.runs.folder import RunFolder
from ganherd.training import finish, loop


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 steps on a disk with room; its recipe and data lie beside it."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        assert (
            tiny_runs.command("train", recipes.write_recipe(folder, budget="24steps"), "--run", folder / "run", "-q")
            == 0
        )
    return folder / "run"


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def at_step(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    tick = loop.Trainer.tick

    def acting(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == number:
            act()

    patch.setattr(loop.Trainer, "tick", acting)


# what the full disk refuses, and the checkpoint that is whole then
REFUSED: dict[str, tuple[Any, str, int | None]] = {
    "the first checkpoint": (checkpoint, "_write", None),
    "a checkpoint": (checkpoint, "_write", 7),
    "the folder of a checkpoint": (checkpoint, "force_to_disk", 7),
    "a record": (records.JsonLinesWriter, "write", 7),
    "putting records on the disk": (records.JsonLinesWriter, "flush", 7),
    "the mixture": (finish, "make_mixture", 24),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_full_disk_is_75_and_the_resume_is_exact(
    tmp_path: Path, whole: Path, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, name, last = REFUSED[what]
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        if last == 7:
            at_step(patch, 10, lambda: patch.setattr(where, name, full))
        else:
            patch.setattr(where, name, full)
        patch.setattr(RunFolder, "write_info", _only_once(RunFolder.write_info))
        code = tiny_runs.command("train", whole.parent / "little.yaml", "--run", run, "-q")
    said = capsys.readouterr().err
    assert code == 75, said
    assert len(said.splitlines()) == 1 and "No space left on device" in said
    assert f"resume it with: ganherd train --resume {run}" in said
    assert (run_files.steps(run) or [None])[-1] == last
    assert tiny_runs.command("status", run) == 0
    assert ": killed, " in capsys.readouterr().out  # the state could not be written either
    assert tiny_runs.command("train", "--resume", run, "-q") == 0
    run_files.assert_same_run(run, whole)


def _only_once(write: Any) -> Any:
    """run.json is written when the run begins, and never again: the disk is full."""

    def writing(self: RunFolder, **changes: Any) -> None:
        if self.info_path.exists():
            full()
        write(self, **changes)

    return writing


def test_a_disk_that_is_full_from_the_start_is_one_sentence(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_info", full)
        assert tiny_runs.command("train", whole.parent / "little.yaml", "--run", tmp_path / "run") == 2
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]


def test_a_resume_on_a_disk_still_full_is_75_again(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_info", full)
        assert tiny_runs.command("train", "--resume", run) == 75
    assert f"ganherd train --resume {run}" in capsys.readouterr().err
    tiny_runs.resume(run)
    run_files.assert_same_run(run, whole)


def test_a_line_that_the_disk_took_half_of_is_not_written_later(tmp_path: Path) -> None:
    """Out of a buffer, when the file was cut and goes on already."""
    path = tmp_path / "metrics.jsonl"
    lines = records.JsonLinesWriter(path)
    lines.write({"step": 1})
    kept = lines.flush()
    lines.write({"step": 2})
    again = records.JsonLinesWriter(path, kept)
    again.write({"step": 3})
    lines.close()
    del lines
    assert [line["step"] for line in run_files.json_lines(path)] == [1, 3]


# -- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB, where this machine lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    tried = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here ({tried.stderr.strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    filler = disk / "filler"
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    filler.write_bytes(b"x" * (room - leave))
    return filler


@pytest.mark.parametrize("leave", [0, 8192, 20480])  # bytes that are left when the checkpoint of step 14 is due
def test_a_disk_that_runs_full_while_saving(
    disk: Path, whole: Path, leave: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = disk / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 13, lambda: fill(disk, leave))
        code = tiny_runs.command("train", whole.parent / "little.yaml", "--run", run, "-q")
    said = capsys.readouterr().err
    assert code == 75, said
    assert "No space left on device" in said and len(said.splitlines()) == 1
    assert run_files.steps(run)[-1] == 7
    (disk / "filler").unlink()
    assert tiny_runs.command("train", "--resume", run, "-q") == 0
    run_files.assert_same_run(run, whole)


@pytest.mark.further
def test_a_disk_that_runs_full_while_recording(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = recipes.noise_recipe(tmp_path, "40steps", record_every=1, checkpoint_every=0)
    tiny_runs.train(tmp_path / "whole", settings)
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: fill(disk))
        with pytest.raises(ganherd.Interrupted, match=r"No space left on device.*resume it with"):
            tiny_runs.train(disk / "run", settings)
    assert len(RunFolder(disk / "run").metrics()) >= 3
    (disk / "filler").unlink()
    tiny_runs.resume(disk / "run")
    run_files.assert_same_run(disk / "run", tmp_path / "whole")


def test_a_read_only_run_folder_is_refused(disk: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(whole, disk / "run")
    before = run_files.snapshot(disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert tiny_runs.command("train", "--resume", disk / "run", "--budget", "30steps") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "Read-only file system" in said
    assert tiny_runs.command("train", whole.parent / "little.yaml", "--run", disk / "new", "-q") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "Read-only file system" in said
    assert tiny_runs.command("status", disk / "run") == 0
    assert run_files.snapshot(disk / "run") == before


def test_scores_that_cannot_be_kept_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ganherd.scoring.one_run import keep

    recipe = tiny_recipe(tiny_data(tmp_path / "small.npz"), run={"scores": False})
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True)

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    keep(run.path, {"fid": {"value": 1.0}})
    assert "scores.json cannot be written (No space left on device)" in capsys.readouterr().err
    assert not run.folder.scores_path.exists()
