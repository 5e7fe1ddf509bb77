"""A rank that publishes and takes versions, and asserts what it gets: `rank_with_board.py ENGINE FOLDER`.

It leaves a file in the folder when all is well. The first rank takes nothing from others, so it publishes as it likes: all
others take its last member, which nobody but the test decides to be old or new.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ganherd.comm.backends.detect import connect
from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.version_board import VersionBoard
from ganherd.herd.state import State

MEMBERS, FLOATS = 2, 50_000  # of each rank; so large that no message is on its way before its receiver is ready
ROW = 8 * FLOATS + 2 * 3  # bytes


def parts(rank: int, version: int) -> State:
    """Rows that say whose they are, and of which version."""
    rows = 100.0 * version + rank * MEMBERS + torch.arange(MEMBERS)
    return {"odd": rows.to(torch.int16)[:, None].repeat(1, 3), "weights": rows[:, None].repeat(1, FLOATS).double()}


class Reader:
    """A board on which all others follow the first rank."""

    def __init__(self, comm: Communicator, bound: int) -> None:
        placement = Placement(
            tuple(tuple(range(rank * MEMBERS, (rank + 1) * MEMBERS)) for rank in range(comm.world_size))
        )
        wanted = [[MEMBERS - 1, *own] if rank else [] for rank, own in enumerate(placement.ranks)]
        self.rank, self.board = comm.rank, VersionBoard(comm, placement, wanted, parts(0, 0), bound)

    def publish(self, *versions: int) -> None:
        for version in versions:
            self.board.publish(parts(self.rank, version), version)

    def took(self, version: int) -> int:
        """The version of the first rank's member, all of whose numbers are of that one, as all of its own are of `version`."""
        found = self.board.take(parts(self.rank, version), version)
        came = int(found["weights"][0, 0]) // 100
        own = parts(self.rank, version)
        for name, value in found.items():
            assert torch.equal(value, torch.cat([parts(0, came)[name][-1:], own[name]])), name
        assert self.board.versions == {0: came}
        return came

    def has_come(self, version: int) -> None:
        while self.board.versions[0] < version:  # for ever, where it never comes
            self.board.poll()


def without_a_bound(comm: Communicator) -> None:
    """Nobody takes what is too new, though all of it is there already; nor is anything lost."""
    sent, received, reader = comm.bytes_sent, comm.bytes_received, Reader(comm, 0)
    reader.board.begin_unsynced(0, 3)
    reader.publish(*(range(4) if comm.rank == 0 else []))
    comm.barrier()
    if comm.rank:
        assert [reader.took(version) for version in range(4)] == [0, 1, 2, 3]
    reader.board.drain()
    others = comm.world_size - 1
    expected = (4 * ROW * others, 0) if comm.rank == 0 else (0, 4 * ROW)
    assert (comm.bytes_sent - sent, comm.bytes_received - received) == expected


def within_a_bound(comm: Communicator) -> None:
    """The newest that came is taken, up to the bound; who is further behind is waited for; what was not taken is settled."""
    reader = Reader(comm, 1)
    reader.board.begin_unsynced(0, 5)
    reader.publish(*(range(4) if comm.rank == 0 else []))
    if comm.rank:
        assert reader.took(0) in (0, 1)
        reader.has_come(2)  # while it trains
        assert reader.took(1) == 2
        reader.has_come(3)
        assert [reader.took(version) for version in (2, 3, 4)] == [3, 3, 3]
    comm.barrier()
    if comm.rank:
        assert reader.took(5) == 4
    else:
        reader.publish(4)
    comm.barrier()
    reader.publish(*([5] if comm.rank == 0 else []))
    reader.board.drain()
    reader.board.begin_unsynced(5, 6)  # together, and apart again
    reader.publish(*([6] if comm.rank == 0 else []))
    reader.board.drain()
    if comm.rank:
        assert reader.took(6) == 6


def main(engine: str, folder: str) -> None:
    comm = connect(engine)
    without_a_bound(comm)
    within_a_bound(comm)
    (Path(folder) / str(comm.rank)).write_text("well")
    comm.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
