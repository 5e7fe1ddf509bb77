"""The ranks that have members, and the bytes of members that they exchange."""

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
    """The ranks that have members, and the members of each."""

    comm: Communicator
    placement: Placement
    members: int  # number of consecutive members that meet: those of one class if it has several, or of one replica
    classes: int = 1  # groups of such members in one replica

    @classmethod
    def of(cls, prepared: PreparedHerd, across_classes: bool = False) -> MemberRanks:
        """Return the ranks of a run. If `across_classes`, all members of a replica meet, otherwise those of one class."""
        members = prepared.members if across_classes else prepared.group_members
        return cls(prepared.ranks.member_comm, prepared.ranks.placement, members, prepared.members // members)

    @property
    def own(self) -> tuple[int, ...]:
        """Return the members of this rank."""
        return self.placement.ranks[self.comm.rank]

    def all_gather(self, values: np.ndarray) -> np.ndarray:
        """Return values of all members [N, …] from those of this rank's members [n, …]."""
        return self.comm.all_gather(values, self.placement)


@dataclass
class Traffic:
    """Counters of one rank since its process started."""

    exchanges: int = 0  # meetings at which members were sent
    received: int = 0  # bytes of members received from other ranks
    gathered: int = 0  # bytes that an all-gather of all members of this rank's replicas would have brought

    def begin_fetch(self, ranks: MemberRanks, state: State, wanted: Sequence[Sequence[int]]) -> Fetch:
        """Call `Communicator.begin_fetch` and count its bytes. The caller counts `exchanges`."""
        before = ranks.comm.bytes_received
        fetch = ranks.comm.begin_fetch(state, ranks.placement, wanted)
        self.received += ranks.comm.bytes_received - before
        self.count_all_gather(ranks, state)
        return fetch

    def count_all_gather(self, ranks: MemberRanks, state: State) -> None:
        """Count the bytes that an all-gather of these tensors would bring."""
        others = len({member // ranks.members for member in ranks.own}) * ranks.members - len(ranks.own)
        self.gathered += others * Layout.of(state).width if others else 0
