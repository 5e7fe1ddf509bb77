"""The ranks (processes) that hold members, and counters of the bytes that they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.row_messages import Fetch, Layout
from ganherd.herd.state import State

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd


@dataclass(frozen=True)
class MemberRanks:
    """The ranks that hold members, the members of each, and the size of the groups within which members meet."""

    comm: Communicator
    placement: Placement  # the members of each rank
    # Number of members in a group. Only members of one group meet. A group is a replica (one of several independent
    # copies of the herd), or one class of a replica if each class has several members.
    members: int
    classes: int = 1  # number of groups in one replica

    @classmethod
    def of(cls, prepared: PreparedHerd, across_classes: bool = False) -> MemberRanks:
        """Return the ranks of a run.

        Args:
            prepared: The herd with its data and ranks.
            across_classes: Let all members of a replica meet, instead of those of one class only.
        """
        members = prepared.members if across_classes else prepared.group_members
        return cls(prepared.ranks.member_comm, prepared.ranks.placement, members, prepared.members // members)

    @property
    def own(self) -> tuple[int, ...]:
        """Return the members of this rank, numbered over the whole herd."""
        return self.placement.ranks[self.comm.rank]

    def all_gather(self, values: np.ndarray) -> np.ndarray:
        """Exchange values of members: return those of all members [N, …] from those of this rank's members [n, …]."""
        return self.comm.all_gather(values, self.placement)


@dataclass
class Traffic:
    """Counters of what one rank exchanged since its process started."""

    exchanges: int = 0  # number of meetings at which members were sent
    received: int = 0  # bytes of members received from other ranks
    # For comparison: the bytes this rank would have received if every exchange had sent all members of its groups to
    # all ranks
    gathered: int = 0

    def begin_fetch(self, ranks: MemberRanks, state: State, wanted: Sequence[Sequence[int]]) -> Fetch:
        """Start to fetch members from other ranks (see `Communicator.begin_fetch`), and count the bytes.

        The caller counts `exchanges`.

        Args:
            ranks: The ranks with members.
            state: Tensors with a row for each of this rank's members.
            wanted: The members that each rank gets.
        """
        before = ranks.comm.bytes_received
        fetch = ranks.comm.begin_fetch(state, ranks.placement, wanted)
        self.received += ranks.comm.bytes_received - before
        self.count_all_gather(ranks, state)
        return fetch

    def count_all_gather(self, ranks: MemberRanks, state: State) -> None:
        """Add to `gathered` the bytes of these tensors for all members of this rank's groups on other ranks."""
        others = len({member // ranks.members for member in ranks.own}) * ranks.members - len(ranks.own)
        self.gathered += others * Layout.of(state).width if others else 0
