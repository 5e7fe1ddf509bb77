"""The traffic of a torus is its borders: so many slices as cells meet across ranks, however many ranks there are."""

from __future__ import annotations

import json
from pathlib import Path

from comm.launch import job
from comm.rank_on_torus import FLOATS
from ganherd.comm.placement import border, torus_blocks


def test_a_rank_receives_its_border_and_nothing_else(tmp_path: Path) -> None:
    code, said = job("forked", 8, "rank_on_torus.py", tmp_path)
    assert code == 0, said
    slice_bytes, seen = 4 * FLOATS, set()
    for path in tmp_path.glob("*.json"):
        rows = json.loads(path.read_text())
        for (ranks, rank, received, sent), (_, _, everything, _) in zip(rows[::2], rows[1::2], strict=True):
            height, width = torus_blocks(4, 4, ranks)[rank][2:]
            if 16 % ranks:  # cells in the order of the members, where these are more even than rectangles
                continue
            assert received == sent == border(4, 4, height, width) * slice_bytes  # a torus: what comes is what goes
            assert everything == (16 - height * width) * slice_bytes  # what an all-gather moves
            seen.add((ranks, received // slice_bytes, everything // slice_bytes))
    assert seen == {(1, 0, 0), (2, 8, 8), (4, 8, 12), (8, 6, 14)}


def test_the_traffic_of_a_rank_does_not_grow_with_the_grid() -> None:
    """One cell a rank: four slices, on any torus; an all-gather moves one of every other cell."""
    for side in (3, 4, 10, 40):
        assert border(side, side, 1, 1) == 4
        assert side * side - 1 > 4
