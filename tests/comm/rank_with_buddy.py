"""A rank that keeps copies of another's members, and is asked for them when ranks are gone; started by test_buddies.py."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import torch

from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.buddies import Buddies
from ganherd.comm.communicator import Communicator, Placement, RankLost
from ganherd.comm.placement import place


def herd(placement: Placement, rank: int, step: int) -> dict[str, torch.Tensor]:
    """Numbers that tell the member and the step."""
    members = torch.tensor(placement.ranks[rank], dtype=torch.int64)
    return {"set.slot": members, "g.params": members[:, None].double() * 1000 + step + torch.arange(5.0)}


def check(found: dict[str, torch.Tensor], members: list[int], step: int) -> None:
    expected = herd(Placement((tuple(members),)), 0, step)
    assert all(torch.equal(found[name], expected[name]) for name in expected), (found, expected)


def check_those_left(comm: Communicator, buddies: Buddies, gone: set[int], step: int) -> None:
    """Each of the first ranks left gets a share of the herd back, as it was."""
    left = [rank for rank in range(comm.world_size) if rank not in gone]
    small = comm.new_group(left)
    if small is None:
        return
    found = buddies.find(small, range(7))
    kept = place(7, comm.world_size).ranks
    lost = sorted(m for rank in gone if (rank + 1) % comm.world_size in gone for m in kept[rank])
    assert (found.step, list(found.missing)) == (step, lost), (found.step, found.missing)
    assert found.facts == tuple({"rank": rank, "step": step} for rank in range(comm.world_size))
    there = [m for m in range(7) if m not in lost]
    wanted = [there[rank :: small.world_size][::-1] for rank in range(small.world_size)]
    check(found.fetch(small, wanted), wanted[small.rank], step)
    assert buddies.find(small, [1, 9]).missing == ((1, 9) if 1 in lost else (9,))
    small.close()


def main(folder: Path) -> None:
    comm = connect(detect(os.environ))
    try:
        placement, buddies = place(7, comm.world_size), Buddies()
        assert buddies.step is None
        nothing = buddies.find(comm, [0, 3])
        assert (nothing.step, nothing.missing) == (None, (0, 3))
        for step in (10, 20):
            state = herd(placement, comm.rank, step)
            buddies.refresh(comm, placement, state, step, {"rank": comm.rank, "step": step})
            state["g.params"].zero_()  # what is trained on is not the copy
            assert buddies.step == step
        for gone in ({1}, {0}, {1, 2}, {0, comm.world_size - 1}, {1, 3}):
            check_those_left(comm, buddies, gone, 20)
        check_interrupted(comm, placement, buddies)
        (folder / str(comm.rank)).touch()
        comm.close()
    except BaseException:
        traceback.print_exc()
        comm.abort(1)


def check_interrupted(comm: Communicator, placement: Placement, buddies: Buddies) -> None:
    """A refresh that a loss ended: all go back to the one before where one of them has no part in it, else all to this one."""
    barrier = comm.barrier

    def breaks() -> None:
        barrier()
        raise RankLost("in the last moment")

    def refresh(step: int) -> None:
        with suppress(RankLost):
            buddies.refresh(comm, placement, herd(placement, comm.rank, step), step, {"rank": comm.rank, "step": step})

    comm.barrier = breaks  # type: ignore[method-assign]
    refresh(30)
    if comm.rank == 2:  # as if it had heard of the loss before it had its part
        buddies._copies.pop()
    check_those_left(comm, buddies, {1}, 20)
    if comm.rank % 2:
        del comm.__dict__["barrier"]
    refresh(40)
    comm.__dict__.pop("barrier", None)
    check_those_left(comm, buddies, {1}, 40)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
