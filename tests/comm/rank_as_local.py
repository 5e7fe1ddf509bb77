"""A rank that compares all that its communicator answers with what one process would; started by test_ranks.py."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ganherd.comm import handshake
from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.backends.local import Local
from ganherd.comm.backends.mpi import Mpi
from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.placement import place
from ganherd.util.errors import UserError

ROWS: dict[
    str, tuple[torch.dtype, tuple[int, ...]]
] = {  # dtypes and shapes of all kinds, none in the order of its size
    "set.slot": (torch.int64, ()),
    "d.flag": (torch.bool, (3,)),
    "g.params": (torch.float32, (7,)),
    "g.half": (torch.bfloat16, (5, 1)),
    "g.nothing": (torch.float32, (0, 2)),
    "d.params": (torch.float64, (2, 3, 2)),
    "d.byte": (torch.uint8, ()),
}
WIDTH = 8 + 3 + 28 + 10 + 0 + 96 + 1  # bytes of a member


def herd(members: int, seed: int) -> dict[str, torch.Tensor]:
    """The same on every rank."""
    random = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(random.integers(0, 200, (members, *shape))).to(dtype)
        for name, (dtype, shape) in ROWS.items()
    }


def placements(size: int, random: np.random.Generator) -> list[Placement]:
    """In blocks, by chance, on fewer members than ranks, and all on the last rank."""
    home = random.integers(0, size, 9)
    by_chance = tuple(tuple(np.flatnonzero(home == rank).tolist()) for rank in range(size))
    last = ((),) * (size - 1) + (tuple(range(4)),)
    return [place(7, size), Placement(by_chance), place(max(1, size - 1), size), Placement(last)]


def check_fetch(comm: Communicator, placement: Placement, wanted: Sequence[Sequence[int]], seed: int) -> None:
    whole, own = herd(placement.num_members, seed), list(placement.ranks[comm.rank])
    state = {name: value[own] for name, value in whole.items()}
    before = comm.bytes_sent, comm.bytes_received, comm.exchange_seconds
    found = comm.fetch(state, placement, wanted)
    expected = Local().fetch(whole, Placement((tuple(range(placement.num_members)),)), [wanted[comm.rank]])
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), name
        value.zero_()  # a copy, even of what is this rank's own
        assert torch.equal(state[name], whole[name][own])
    home = {member: rank for rank, members in enumerate(placement.ranks) for member in members}
    leave = {(rank, m) for rank, members in enumerate(wanted) for m in members if home[m] == comm.rank != rank}
    come = {m for m in wanted[comm.rank] if home[m] != comm.rank}
    assert comm.bytes_sent - before[0] == len(leave) * WIDTH
    assert comm.bytes_received - before[1] == len(come) * WIDTH
    assert comm.exchange_seconds > before[2] and comm.waiting_since is None


def check_gather(comm: Communicator, placement: Placement, seed: int) -> None:
    random = np.random.default_rng(seed)
    for whole in (random.normal(size=(placement.num_members, 2, 3)), random.integers(0, 9, placement.num_members) > 4):
        found = comm.all_gather(whole[list(placement.ranks[comm.rank])], placement)
        assert found.dtype == whole.dtype and np.array_equal(found, whole)


def check_members(comm: Communicator) -> None:
    random = np.random.default_rng(comm.world_size)
    for number, placement in enumerate(placements(comm.world_size, random)):
        n = placement.num_members
        check_fetch(
            comm,
            placement,
            [random.integers(0, n, random.integers(0, 6)).tolist() for _ in range(comm.world_size)],
            number,
        )
        check_fetch(comm, placement, [list(range(n)) for _ in range(comm.world_size)], number)
        check_gather(comm, placement, number)


def check_under_way(comm: Communicator) -> None:
    """Members as they were when the fetch was begun, whatever is trained, asked or begun until it is waited for."""
    placement, asked = place(7, comm.world_size), [[6, rank % 7, 0] for rank in range(comm.world_size)]
    whole, own = herd(7, 1), list(placement.ranks[comm.rank])
    state, before = {name: value[own] for name, value in whole.items()}, (comm.bytes_sent, comm.bytes_received)
    first = comm.begin_fetch(state, placement, asked)
    for value in state.values():
        value.fill_(1)
    assert comm.all_gather_bytes(b"meanwhile") == [b"meanwhile"] * comm.world_size
    second = comm.begin_fetch(state, placement, asked)
    first.poll()
    second.poll()
    for name, value in first.wait().items():
        assert torch.equal(value, whole[name][asked[comm.rank]]), name
    assert first.wait() is first.wait()
    assert all((value == 1).all() for value in second.wait().values())
    come = {m for m in asked[comm.rank] if m not in own}
    assert comm.bytes_received - before[1] == 2 * len(come) * WIDTH and comm.waiting_since is None


def check_nothing_crosses(comm: Communicator) -> None:
    """Who wants its own alone gets them without a word to anybody."""
    placement = place(2 * comm.world_size, comm.world_size)

    def refuse(*_: object) -> None:
        raise AssertionError("something was sent")

    comm._start = comm._all_gather_bytes = refuse  # type: ignore[method-assign, assignment]
    check_fetch(comm, placement, [own[::-1] for own in placement.ranks], 0)
    check_fetch(comm, placement, [()] * comm.world_size, 0)
    del comm._start, comm._all_gather_bytes


def check_small_things(comm: Communicator) -> None:
    for content in (b"", b'{"steps": 5}', bytes(range(256)) * 300):
        assert comm.broadcast(content if comm.rank == 0 else None) == content
    for length in (1, 100, 248, 100_000):  # the contents of some ranks do not fit into the first message
        gathered = comm.all_gather_bytes(b"x" * length * comm.rank)
        assert gathered == [b"x" * length * rank for rank in range(comm.world_size)]
    assert len(comm.hosts) == comm.world_size and comm.local_rank == comm.rank
    comm.barrier()


def check_parts(comm: Communicator) -> None:
    """Some of the ranks by themselves, as those that are no spares."""
    assert comm.new_group(range(comm.world_size)) is comm
    for ranks in {5: ([0], [0, 1, 2], [4, 3, 0, 2])}.get(comm.world_size, ()):
        part = comm.new_group(ranks)
        assert (part is None) == (comm.rank not in ranks)
        if part is not None:
            assert (part.rank, part.world_size) == (sorted(ranks).index(comm.rank), len(ranks))
            check_members(part)
            check_small_things(part)
            part.close()


def check_disagreements(comm: Communicator) -> None:
    """All ranks hear the same sentence, which names the one that differs."""
    handshake.agree(comm, "recipe", "train:\n  batch: 64\n")
    if comm.world_size == 1:
        return
    true, other = handshake.versions(), comm.rank == 1
    handshake.versions = lambda: {**true, "numpy": "0.0"} if other else true
    check_sentence(
        comm, lambda: handshake.introduce(comm), f"numpy is {true['numpy']} on rank 0", "and 0.0 on rank 1 on "
    )
    recipe = "train:\n  batch: 32\n" if other else "train:\n  batch: 64\n"
    check_sentence(
        comm, lambda: handshake.agree(comm, "recipe", recipe), "rank 1 on ", "'batch: 32' in place of 'batch: 64'"
    )


def check_sentence(comm: Communicator, call: object, *parts: str) -> None:
    try:
        call()  # type: ignore[operator]
    except UserError as error:
        sentence = str(error)
    assert all(part in sentence for part in parts), sentence
    assert len(set(comm.all_gather_bytes(sentence.encode()))) == 1


def main(asked: str, folder: Path) -> None:
    name = detect(os.environ)
    comm = connect(asked)
    try:
        assert name == (asked if comm.world_size > 1 else "local")
        check_small_things(comm)
        check_members(comm)
        Mpi.most = 100  # from here on messages are cut
        check_members(comm)
        check_under_way(comm)
        check_nothing_crosses(comm)
        check_parts(comm)
        check_disagreements(comm)
        (folder / f"{comm.rank}.json").write_text(json.dumps([comm.rank, comm.world_size]))
        comm.close()
    except BaseException:
        traceback.print_exc()
        comm.abort(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
