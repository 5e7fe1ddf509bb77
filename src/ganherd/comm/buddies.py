"""Copy members to the memory of another rank (a buddy), from which they continue if their rank dies.

This is faster than a checkpoint. A spare is a rank without members. In shapes, n is the number of members on one rank.
"""

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
    """A copy of some members as they were at a step, in host memory."""

    step: int
    members: tuple[int, ...]
    rows: State  # tensors [len(members), …] in the order of `members`
    facts: tuple[Any, ...]  # what each rank passed to `Buddies.refresh` as `facts`


class Buddies:
    """Hold copies of this rank's members and of those of the previous rank, as they were at the last `refresh`.

    If a rank dies during a refresh, the copies of the refresh before are still complete: there is always a step of
    which all remaining ranks have copies. The copies take twice the state of a rank in host memory, and four times
    during a refresh.
    """

    def __init__(self) -> None:
        self._copies: list[BuddyCopy] = []  # the last copy that all ranks have, then perhaps one that some may lack

    @property
    def step(self) -> int | None:
        """Return the step of the last complete copy; None: there is none yet."""
        return self._copies[0].step if self._copies else None

    def refresh(self, comm: Communicator, placement: Placement, state: State, step: int, facts: Any = None) -> None:
        """Copy all members as they are now. All ranks call this at the same step.

        Args:
            comm: All ranks that have members.
            placement: The members of each rank.
            state: Tensors [n, …] of this rank's members.
            step: The step of the run.
            facts: Small values of this rank, which must fit JSON; every rank gets a copy.
        """
        all_facts = tuple(json.loads(each) for each in comm.all_gather_bytes(json.dumps(facts).encode()))
        host = {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
        if comm.world_size > 1:
            wanted = [(*placement.ranks[rank], *placement.ranks[rank - 1]) for rank in range(comm.world_size)]
        else:
            wanted = [placement.ranks[0]]
        rows = comm.fetch(host, placement, wanted)
        self._copies.append(BuddyCopy(step, wanted[comm.rank], rows, all_facts))
        comm.barrier()  # now all ranks have this copy, so the one before can be dropped
        self._copies = self._copies[-1:]

    def find(self, comm: Communicator, members: Sequence[int]) -> BuddyCopies:
        """Return the copies of these members that the remaining ranks have together. All remaining ranks call this.

        All copies are of one step: the newest step of which all these members have copies. If there is none, it is the
        newest step of which every rank that has any copies has some; then some members are `missing` in the result.

        Args:
            comm: The remaining ranks.
            members: The members that are needed.
        """
        local: dict[int, dict[int, tuple[BuddyCopy, int]]] = {}  # step -> member -> (copy, row)
        for copy in self._copies:
            local.setdefault(copy.step, {}).update({member: (copy, row) for row, member in enumerate(copy.members)})
        answers = comm.all_gather_bytes(json.dumps({step: list(rows) for step, rows in local.items()}).encode())
        held = [{int(step): own for step, own in json.loads(each).items()} for each in answers]
        step = _newest_step(held, members)
        if step is None:
            return BuddyCopies(None, Placement(((),) * comm.world_size), tuple(members), (), {})
        holders = _holders(held, step)
        by_rank = [sorted(member for member in holders if holders[member] == rank) for rank in range(comm.world_size)]
        placement = Placement(tuple(map(tuple, by_rank)))
        facts, layout = self._facts_and_layout(comm, step, first=next(r for r, each in enumerate(held) if step in each))
        rows = empty_rows(layout)
        if copies := [local[step][member] for member in placement.ranks[comm.rank]]:
            rows = {name: torch.stack([copy.rows[name][row] for copy, row in copies]) for name in rows}
        missing = tuple(member for member in members if member not in holders)
        return BuddyCopies(step, placement, missing, tuple(facts), rows)

    def _facts_and_layout(self, comm: Communicator, step: int, first: int) -> Any:
        """Return the facts and the layout of the copies of a step, from the rank `first`, which has some."""
        content = b""
        if comm.rank == first:
            last = next(copy for copy in reversed(self._copies) if copy.step == step)
            content = json.dumps([last.facts, row_layout(last.rows)]).encode()
        return json.loads(comm.all_gather_bytes(content)[first])


def _newest_step(held: Sequence[dict[int, list[int]]], members: Sequence[int]) -> int | None:
    """Return the step of the copies to use, as `Buddies.find` describes; None if there are no copies.

    Args:
        held: For each rank, the members of which it has copies, by the step of the copies.
        members: The members that are needed.
    """
    for step in sorted({step for each in held for step in each}, reverse=True):
        if set(members) <= {member for each in held for member in each.get(step, ())}:
            return step
    common = [set(each) for each in held if each]
    return max(set.intersection(*common), default=None) if common else None


def _holders(held: Sequence[dict[int, list[int]]], step: int) -> dict[int, int]:
    """Return for each member with a copy of this step the first rank that has one."""
    holders: dict[int, int] = {}
    for rank, each in enumerate(held):
        for member in each.get(step, ()):
            holders.setdefault(member, rank)
    return holders


def row_layout(rows: State) -> list[tuple[str, str, list[int]]]:
    """Return the name, type and row shape of each tensor, as JSON values.

    A rank without rows creates empty tensors from it (`empty_rows`).
    """
    return [(name, str(value.dtype).removeprefix("torch."), list(value.shape[1:])) for name, value in rows.items()]


def empty_rows(layout: Sequence[tuple[str, str, list[int]]]) -> State:
    """Return tensors without rows [0, …], by name. `layout`: what `row_layout` returned.

    >>> empty_rows(row_layout({"g.params": torch.zeros(3, 2)}))
    {'g.params': tensor([], size=(0, 2))}
    """
    return {name: torch.empty(0, *shape, dtype=getattr(torch, dtype)) for name, dtype, shape in layout}


@dataclass(frozen=True)
class BuddyCopies:
    """The copies that the remaining ranks have together, as `Buddies.find` returns them."""

    step: int | None  # the step of all copies; None: there are no copies
    holders: Placement  # for each rank, the members that it supplies
    missing: tuple[int, ...]  # requested members without a copy; they must come from a checkpoint
    facts: tuple[Any, ...]  # what each rank passed to `refresh` at that step; indexed by the rank numbers of that time
    rows: State  # the copies that this rank supplies, in the order of `holders`

    def fetch(self, comm: Communicator, wanted: Sequence[Sequence[int]]) -> State:
        """Return the members wanted[rank] as they were at that step, on the host. All ranks call this.

        The members must not be `missing`.
        """
        return comm.fetch(self.rows, self.holders, wanted)
