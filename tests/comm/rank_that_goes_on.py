"""A rank of a job that loses ranks one after another, each in another way, and goes on with those left; started by test_ulfm.py."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from ganherd.comm.backends.detect import connect
from ganherd.comm.buddies import Buddies
from ganherd.comm.communicator import Communicator, Placement, RankLost, Survivors
from ganherd.comm.placement import place

MEMBERS = 7


def herd(placement: Placement, rank: int, step: int) -> dict[str, torch.Tensor]:
    """Numbers that tell the member and the step; large enough that MPI does not send them at once."""
    members = torch.tensor(placement.ranks[rank], dtype=torch.int64)
    return {"set.slot": members, "g.params": members[:, None].double() * 1000 + step + torch.arange(30_000.0)}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_exchange(comm: Communicator, placement: Placement, victims: list[int]) -> None:
    """Rank 1 wants members of the first victim; the others wait for ranks that are alive."""
    if comm.rank in victims:
        die()
    wanted = [
        list(placement.ranks[victims[0]]) if rank == (victims[0] + 1) % comm.world_size else []
        for rank in range(comm.world_size)
    ]
    comm.fetch(herd(placement, comm.rank, 0), placement, wanted)
    comm.barrier()


def in_collective(comm: Communicator, placement: Placement, victims: list[int]) -> None:
    if comm.rank in victims:
        die()
    comm.all_gather_bytes(b"x" * comm.rank)
    comm.all_gather_bytes(b"y")


def while_nobody_waits(comm: Communicator, placement: Placement, victims: list[int]) -> None:
    """All train by themselves, and look now and then."""
    if comm.rank in victims:
        die()
    while True:
        comm.raise_if_rank_lost()
        time.sleep(0.001)


def under_way(comm: Communicator, placement: Placement, victims: list[int]) -> None:
    """A fetch was begun and is never waited for."""
    everyone = [list(range(MEMBERS)) for _ in range(comm.world_size)]
    fetch = comm.begin_fetch(herd(placement, comm.rank, 0), placement, everyone)
    if comm.rank in victims:
        die()
    while True:
        fetch.poll()
        comm.raise_if_rank_lost()
        time.sleep(0.001)


def in_a_part(comm: Communicator, placement: Placement, victims: list[int]) -> None:
    """The last rank is a spare: it waits for all, and is woken by a loss among the others."""
    part = comm.new_group(range(comm.world_size - 1))
    if comm.rank in victims:
        die()
    (part or comm).barrier()


def as_the_last(comm: Communicator, placement: Placement, victims: list[int]) -> None:
    if comm.rank in victims:
        die()
    comm.close()


WAYS = {
    way.__name__: way for way in (in_exchange, in_collective, while_nobody_waits, under_way, in_a_part, as_the_last)
}


def lose(comm: Communicator, placement: Placement, way: str, victims: list[int], late: list[int]) -> Survivors:
    """The ranks `victims` die in that way, and `late` when the others already look for survivors."""
    comm.barrier()
    began = time.perf_counter()
    try:
        WAYS[way](comm, placement, victims)
    except RankLost as error:
        took = time.perf_counter() - began
        print(f"{way}: {error}, after {1e3 * took:.0f} ms", flush=True)
    else:
        raise AssertionError("nobody was missed")
    if comm.rank in late:
        die()
    began = time.perf_counter()
    left = comm.shrink()
    print(f"{left.comm.world_size} left, after {1e3 * (time.perf_counter() - began):.0f} ms", flush=True)
    assert left.lost == tuple(sorted([*victims, *late])), left
    assert left.before[left.comm.rank] == comm.rank and len(left.comm.hosts) == left.comm.world_size
    return left


def main(folder: Path, losses: list[str]) -> None:
    """`losses`: as in_exchange:0 or in_collective:1,2:0."""
    comm = connect("mpi")
    try:
        assert comm.survives_loss
        placement = place(MEMBERS, comm.world_size)
        for number, loss in enumerate(losses):
            way, *ranks = loss.split(":")
            victims, late = ([int(r) for r in each.split(",") if r] for each in (*ranks, "")[:2])
            step, buddies = 10 * number + 10, Buddies()
            buddies.refresh(comm, placement, herd(placement, comm.rank, step), step, {"rank": comm.rank})
            left = lose(comm, placement, way, victims, late)
            found = buddies.find(left.comm, range(MEMBERS))
            without = [r for r in left.lost if (r + 1) % comm.world_size in left.lost]
            assert (found.step, found.missing) == (step, tuple(m for r in without for m in placement.ranks[r]))
            assert [fact["rank"] for fact in found.facts] == list(range(comm.world_size))
            comm, placement = left.comm, place(MEMBERS, left.comm.world_size)
            wanted = [[m for m in own if m not in found.missing] for own in placement.ranks]
            state, expected = found.fetch(comm, wanted), herd(Placement(tuple(map(tuple, wanted))), comm.rank, step)
            assert all(torch.equal(state[name], expected[name]) for name in expected)
        assert comm.all_gather_bytes(b"here") == [b"here"] * comm.world_size
        (folder / f"{comm.rank}-{comm.world_size}").touch()
        comm.close()
    except BaseException:
        traceback.print_exc()
        comm.abort(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
