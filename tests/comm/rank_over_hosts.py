"""A rank on a host of its own: exchanges members until it is told to stop, also when others are lost; started by test_hosts.py."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.placement import place


def name(comm: Communicator) -> str:
    """Who is there, and which of them this is."""
    return f"{'-'.join(sorted(comm.hosts))}-rank{comm.rank}"


def exchange(comm: Communicator, turn: int) -> None:
    """Every rank gets the next one's member."""
    other = (comm.rank + 1) % comm.world_size
    state = {"member": torch.full((1, 1000), comm.rank + 10.0 * turn)}
    wanted = [[(rank + 1) % comm.world_size] for rank in range(comm.world_size)]
    found = comm.fetch(state, place(comm.world_size, comm.world_size), wanted)
    assert (found["member"] == other + 10.0 * turn).all()


def until_told(comm: Communicator, folder: Path) -> None:
    turn, told = 0, b""
    while told != b"stop" or turn < 3:
        exchange(comm, turn)
        (folder / f"{name(comm)}.pid").write_text(str(os.getpid()))
        turn += 1
        told = comm.broadcast(b"stop" if (folder / "stop").exists() else b"on")
        time.sleep(0.01)


def main(folder: Path) -> None:
    comm = connect(detect(os.environ))
    while True:
        try:
            until_told(comm, folder)
            break
        except RankLost:
            if not comm.survives_loss:
                raise
            comm = comm.shrink().comm
    (folder / f"{name(comm)}.done").touch()
    comm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
