"""The tile shapes of a run's kernels are in run.json before its first step, and a resumed run starts with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels need Triton")

from ganherd.herd.lowering.kernels import tiles
from ganherd.herd.lowering.kernels.tiles import TileShape
from ganherd.runs.folder import RunFolder
from ganherd.training.recording.tile_record import TileRecord

ONE, TWO = [16, 16, 16, 4, 2], [32, 32, 32, 4, 2]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.write_info(state="running", seed=3)
    return folder


def trainer(*others: dict[str, list[int]], is_first: bool = True) -> Any:
    """A trainer whose other ranks use these shapes."""
    ranks = SimpleNamespace(is_first=is_first, all_gather_json=lambda own: [own, *others])
    return SimpleNamespace(ranks=ranks)


def test_shapes_of_all_ranks_are_recorded_before_the_first_step(folder: RunFolder) -> None:
    record = TileRecord(folder)
    tiles._used["product a"] = TileShape(*ONE)
    record.on_start(trainer({"product b": TWO}))
    assert folder.info.tiles == {"product a": ONE, "product b": TWO} and folder.info.seed == 3


def test_shapes_that_are_used_later_are_added_at_a_checkpoint(folder: RunFolder) -> None:
    record = TileRecord(folder)
    tiles._used["product a"] = TileShape(*ONE)
    record.on_start(trainer())
    tiles._used["product b"] = TileShape(*TWO)
    record.on_checkpoint(trainer(), 10)
    assert folder.info.tiles == {"product a": ONE, "product b": TWO}


def test_a_resumed_run_starts_with_the_recorded_shapes(folder: RunFolder) -> None:
    folder.write_info(tiles={"product a": ONE})
    TileRecord(folder)
    assert tiles._recorded == {"product a": TileShape(*ONE)} and not tiles._used


def test_only_the_first_rank_writes(folder: RunFolder) -> None:
    record = TileRecord(folder)
    tiles._used["product a"] = TileShape(*ONE)
    record.on_start(trainer(is_first=False))
    assert folder.info.tiles is None


@pytest.mark.parametrize("shape", [[16], [16, 16, 16, 4, -2], [16, 16, 16, 4, "2"], [1 << 20] * 5, 3])
def test_a_damaged_record_is_refused(folder: RunFolder, shape: object) -> None:
    folder.write_info(tiles={"product a": shape})
    with pytest.raises(Exception, match="not what ganherd writes"):
        _ = folder.info
