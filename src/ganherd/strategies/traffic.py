"""Count the bytes that meetings bring from other ranks, and compare them with an all-gather of all members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ganherd.comm.row_messages import Fetch, Layout

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator, Placement
    from ganherd.herd.state import State


@dataclass
class Traffic:
    """Counters of one rank since its process started."""

    exchanges: int = 0  # meetings at which members were sent
    received: int = 0  # bytes of members received from other ranks
    gathered: int = 0  # bytes that an all-gather of all members of this rank's replicas would have brought

    def begin_fetch(
        self, comm: Communicator, placement: Placement, members: int, state: State, wanted: Sequence[Sequence[int]]
    ) -> Fetch:
        """Call `Communicator.begin_fetch` and count its bytes. The caller counts `exchanges`.

        Args:
            members: The number of members in one replica.
        """
        before = comm.bytes_received
        fetch = comm.begin_fetch(state, placement, wanted)
        self.received += comm.bytes_received - before
        self.count_all_gather(comm, placement, members, state)
        return fetch

    def count_all_gather(self, comm: Communicator, placement: Placement, members: int, state: State) -> None:
        """Count the bytes that an all-gather of these tensors would bring."""
        local = placement.ranks[comm.rank]
        others = len({member // members for member in local}) * members - len(local)
        self.gathered += others * Layout.of(state).width if others else 0
