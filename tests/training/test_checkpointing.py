"""Checkpoints that are written while the herd trains on: the same run, and nothing is lost or passed over in silence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.runs import checkpoint
from ganherd.runs.folder import saved_steps
from ganherd.training.checkpointing import AsyncCheckpointWriter
from ganherd.util.errors import Interrupted


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a GPU."""
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.setattr(AsyncCheckpointWriter, "of", classmethod(lambda cls, device, alone: cls()))
    yield


def trained(folder: Path, name: str, **sections: Any) -> Path:
    data = tiny_data(folder / "data.npz")
    ganherd.train(tiny_recipe(data, **sections), run=folder / name, quiet=True)
    return folder / name


def test_it_holds_the_state_of_its_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk so slow that training is steps ahead when the checkpoint is written."""
    slow = threading.Event()
    save = checkpoint.save

    def late(folder: Path, step: int, *rest: Any) -> Path:
        slow.wait(0.3)
        return save(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "save", late)
    behind_it = trained(tmp_path, "behind", run={"keep": 9})
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(AsyncCheckpointWriter, "of", classmethod(lambda cls, device, alone: None))
    at_once = trained(tmp_path, "at_once", run={"keep": 9})
    steps = saved_steps(at_once / "checkpoints")
    assert len(steps) == 3 and steps == saved_steps(behind_it / "checkpoints")
    for step in steps:
        name = f"checkpoints/step-{step:08d}"
        ours, theirs = (sorted((run / name).glob("*.safetensors")) for run in (behind_it, at_once))
        assert [one.read_bytes() for one in ours] == [one.read_bytes() for one in theirs]


def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint.save

    def full(folder: Path, step: int, *rest: Any) -> Path:
        if step == 3:
            raise OSError(28, "No space left on device")
        return save(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(
        Interrupted, match="step 3 could not be written .No space left on device.; the one before is whole"
    ):
        trained(tmp_path, "full")
    assert saved_steps(tmp_path / "full" / "checkpoints") == [0]


def test_the_memory_of_a_copy_is_used_again() -> None:
    writer, state = AsyncCheckpointWriter(), {"a": torch.arange(3.0), "b": torch.zeros(2)}
    first = writer.copy(state)
    place = first["a"].data_ptr()
    state["a"] += 1
    assert first["a"].tolist() == [0, 1, 2]  # a copy
    again = writer.copy(state)
    assert again["a"].tolist() == [1, 2, 3] and again["a"].data_ptr() == place
