"""Copies of members in the memory of another rank, so that those of a rank that dies can go on without a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ganherd.comm.communicator import Communicator, Placement

if TYPE_CHECKING:
    from ganherd.herd.state import State


@dataclass(frozen=True)
class BuddyCopy:
    """Members as they were at a step, in the host's memory."""

    step: int
    members: tuple[int, ...]
    rows: State
    facts: tuple[Any, ...]  # what each rank had to say with it


class Buddies:
    """Each rank keeps its own members and those of the rank before it, as they were at the last refresh.

    A refresh that a loss interrupts leaves the one before whole: on every rank that is left there is a step of which all have
    their copies. Keeps twice the state of a rank in the host's memory, during a refresh four times.
    """

    def __init__(self) -> None:
        self._copies: list[BuddyCopy] = []  # the last whole one, and one that not all ranks may have

    @property
    def step(self) -> int | None:
        """Of the last whole copy; None: there is none yet."""
        return self._copies[0].step if self._copies else None

    def refresh(self, comm: Communicator, placement: Placement, state: State, step: int, facts: Any = None) -> None:
        """Called by all ranks, at the same step; `facts`: small and plain, as JSON holds it."""
        told = tuple(json.loads(each) for each in comm.collect(json.dumps(facts).encode()))
        own, before = placement.ranks[comm.rank], placement.ranks[comm.rank - 1]
        host = {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
        wanted = [(*placement.ranks[rank], *placement.ranks[rank - 1]) for rank in range(comm.size)]
        rows = comm.fetch(host, placement, wanted if comm.size > 1 else [own])
        self._copies.append(BuddyCopy(step, (*own, *before) if comm.size > 1 else own, rows, told))
        comm.barrier()  # who comes through knows that all have this copy, and needs the one before no more
        self._copies = self._copies[-1:]

    def find(self, comm: Communicator, members: Sequence[int]) -> BuddyCopies:
        """Which of these members can be given back, and from whose memory; called by all ranks of `comm`: those that are left.

        All copies are of one step: the newest of which all of these members are there, else the newest that every rank which
        keeps copies has its part of. A rank that keeps none, as a spare, is given members all the same.
        """
        mine: dict[int, dict[int, tuple[BuddyCopy, int]]] = {}
        for copy in self._copies:
            mine.setdefault(copy.step, {}).update({m: (copy, row) for row, m in enumerate(copy.members)})
        told = comm.collect(json.dumps({step: list(own) for step, own in mine.items()}).encode())
        said = [{int(step): own for step, own in json.loads(each).items()} for each in told]
        step = _newest(said, members)
        if step is None:
            return BuddyCopies(None, Placement(((),) * comm.size), tuple(members), (), {})
        holders: dict[int, int] = {}
        for rank, each in enumerate(said):
            for member in each.get(step, ()):
                holders.setdefault(member, rank)
        placement = Placement(tuple(tuple(sorted(m for m in holders if holders[m] == r)) for r in range(comm.size)))
        speaker = next(rank for rank, each in enumerate(said) if step in each)
        speech = b""
        if comm.rank == speaker:
            last = next(copy for copy in reversed(self._copies) if copy.step == step)
            speech = json.dumps([last.facts, layout(last.rows)]).encode()
        facts, known = json.loads(comm.collect(speech)[speaker])
        at = [mine[step][member] for member in placement.ranks[comm.rank]]
        empty = nothing(known)
        rows = {name: torch.stack([copy.rows[name][row] for copy, row in at]) for name in empty} if at else empty
        return BuddyCopies(step, placement, tuple(m for m in members if m not in holders), tuple(facts), rows)


def _newest(said: Sequence[dict[int, list[int]]], members: Sequence[int]) -> int | None:
    """The step of the copies to take, from the members that each rank has of each step."""
    for step in sorted({step for each in said for step in each}, reverse=True):
        if set(members) <= {member for each in said for member in each.get(step, ())}:
            return step
    common = [set(each) for each in said if each]
    return max(set.intersection(*common), default=None) if common else None


def layout(rows: State) -> list[tuple[str, str, list[int]]]:
    """What a rank needs to know of tensors of which it has no row, as JSON holds it."""
    return [(name, str(value.dtype).removeprefix("torch."), list(value.shape[1:])) for name, value in rows.items()]


def nothing(known: Sequence[tuple[str, str, list[int]]]) -> State:
    """Tensors of that layout, without a row.

    >>> nothing(layout({"g.params": torch.zeros(3, 2)}))
    {'g.params': tensor([], size=(0, 2))}
    """
    return {name: torch.empty(0, *shape, dtype=getattr(torch, dtype)) for name, dtype, shape in known}


@dataclass(frozen=True)
class BuddyCopies:
    """What the memories of the ranks that are left hold together."""

    step: int | None  # of all copies; None: there are none
    holders: Placement  # member -> the rank that gives it back
    missing: tuple[
        int, ...
    ]  # of the members asked for, those that are in nobody's memory: a checkpoint has to give them back
    facts: tuple[Any, ...]  # of each rank at that step, by the ranks of then
    rows: State  # this rank's part, by `holders`

    def fetch(self, comm: Communicator, wanted: Sequence[Sequence[int]]) -> State:
        """The members wanted[rank] as they were at that step, on the host; called by all ranks, for members that are there."""
        return comm.fetch(self.rows, self.holders, wanted)
