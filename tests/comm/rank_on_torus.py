"""A rank with some cells of a 4×4 torus, that fetches what they meet and counts its bytes; started by test_traffic.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from ganherd.comm.backends.detect import connect
from ganherd.comm.placement import place
from ganherd.strategies.cellular.topology import torus

FLOATS = 1000  # of a cell


def main(folder: Path) -> None:
    comm, topology, rows = connect("torch"), torus(4, 4), []
    for ranks in range(1, comm.world_size + 1):
        part = comm.new_group(range(ranks))
        if part is None:
            continue
        placement = place(16, ranks, grid=(4, 4))
        state = {"g.params": torch.zeros(len(placement.ranks[part.rank]), FLOATS)}
        needed = [sorted({n for cell in own for n in topology.neighbours(cell)} | set(own)) for own in placement.ranks]
        for wanted in (needed, [list(range(16))] * ranks):
            before = part.bytes_received, part.bytes_sent
            part.fetch(state, placement, wanted)
            rows.append([ranks, part.rank, part.bytes_received - before[0], part.bytes_sent - before[1]])
    (folder / f"{comm.rank}.json").write_text(json.dumps(rows))
    comm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
