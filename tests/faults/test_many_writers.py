"""Several processes that write the same file at once: all succeed, and the file is whole."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from run_files import arrays

import ganherd
from ganherd.mixture import sample_files
from ganherd.util import files


@pytest.mark.parametrize("name", ["same.npz", "same.png"])
def test_samples_written_to_one_name_at_once_are_all_whole(run: Path, tmp_path: Path, name: str) -> None:
    samples = ganherd.load(run).sample(50)
    target, wrong = tmp_path / name, []

    def write() -> None:
        try:
            for _ in range(5):
                sample_files.write(samples, str(target))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name.endswith(".npz"):
        assert np.array_equal(arrays(target)["x"], samples.x)


def test_a_file_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.atomic_write(path, b"old")
    with pytest.raises(ZeroDivisionError), files.replacing(path) as aside:
        aside.write_bytes(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_records_that_have_another_name_are_not_written_through(tmp_path: Path) -> None:
    """A copy of a run by hard links, or a stranger's: resuming it must not change the other file."""
    from ganherd.runs.records import JsonLinesWriter

    (tmp_path / "other").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "metrics.jsonl").hardlink_to(tmp_path / "other")
    lines = JsonLinesWriter(tmp_path / "metrics.jsonl", length=12)
    lines.write({"step": 3})
    lines.close()
    assert (tmp_path / "other").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 3}\n'
