"""Versions of members on a board: real ranks take the newest that came, within the bound, and lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm.launch import job


@pytest.mark.parametrize(
    ("engine", "ranks"), [("torch", 2), ("forked", 3), pytest.param("mpi", 3, marks=pytest.mark.mpi)]
)
def test_the_newest_version_within_the_bound_is_taken(engine: str, ranks: int, tmp_path: Path) -> None:
    code, said = job(engine, ranks, "rank_with_board.py", "mpi" if engine == "mpi" else "torch", tmp_path)
    assert code == 0, said
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(rank) for rank in range(ranks)], said
