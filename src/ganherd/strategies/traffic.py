"""What comes from other ranks where members meet, beside what an all-gather would bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ganherd.comm.pending import Fetch
from ganherd.comm.row_messages import Layout

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator, Placement
    from ganherd.herd.state import State


@dataclass
class Traffic:
    """Of one rank and one process, since its start."""

    exchanges: int = 0
    received: int = 0  # bytes of members that came from other ranks
    gathered: int = 0  # bytes that would have come, had every rank been sent all members of its replicas

    def begin(
        self, comm: Communicator, placement: Placement, members: int, state: State, wanted: Sequence[Sequence[int]]
    ) -> Fetch:
        """`Communicator.begin_fetch`, counted; `members`: of one replica. The caller counts the exchanges."""
        before = comm.bytes_received
        begun = comm.begin_fetch(state, placement, wanted)
        self.received += comm.bytes_received - before
        self.would_gather(comm, placement, members, state)
        return begun

    def would_gather(self, comm: Communicator, placement: Placement, members: int, state: State) -> None:
        """Counts what an all-gather of these parts would bring."""
        own = placement.ranks[comm.rank]
        others = len({member // members for member in own}) * members - len(own)
        self.gathered += others * Layout.of(state).width if others else 0
