"""The run that torchrun continues when it restarts all ranks, found by what the run folders record."""

from __future__ import annotations

from pathlib import Path

import pytest

from ganherd.runs.folder import RunFolder
from ganherd.training.ranks.restarts import begun, launcher

AGAIN = {"TORCHELASTIC_RUN_ID": "7c0f", "TORCHELASTIC_RESTART_COUNT": "1"}
FIRST = {**AGAIN, "TORCHELASTIC_RESTART_COUNT": "0"}


def make(name: str, state: str, by: str | None = launcher(AGAIN)) -> Path:
    folder = RunFolder.create(Path("runs") / name)
    folder.write_info(launcher=by, state=state)
    return folder.path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_unfinished_run_of_the_same_torchrun_is_continued() -> None:
    mine = make("00001-a", "running")
    make("00002-b", "running", by="another torchrun")
    make("00003-c", "finished")
    assert begun(None, AGAIN) == mine and begun(None, FIRST) is None
    assert begun(mine, AGAIN) == mine and begun(Path("runs/00009-new"), AGAIN) is None


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_run_in_its_first_phase_is_continued_as_a_whole(state: str) -> None:
    """Also between the phases: the first one has finished, and the run itself has no folder yet."""
    make("00001-a-first", state)
    whole = Path("runs/00001-a")
    assert begun(None, AGAIN, two_phases=True) == whole
    make("00001-a", "running")
    assert begun(None, AGAIN, two_phases=True) == whole
    RunFolder(whole).write_info(state="finished")
    assert begun(None, AGAIN, two_phases=True) is None


def test_a_run_of_one_phase_may_have_any_name() -> None:
    assert begun(None, AGAIN) is None
    assert begun(make("00001-my-first", "running"), AGAIN) == begun(None, AGAIN) == Path("runs/00001-my-first")
