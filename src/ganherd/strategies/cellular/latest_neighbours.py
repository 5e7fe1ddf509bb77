"""Take snapshots for `exchange: async`: they hold the newest individuals that have arrived from other ranks.

Each rank publishes copies of its individuals after every iteration. Their version is the number of iterations that they
have completed.
"""

from __future__ import annotations

from ganherd.comm.version_board import VersionBoard
from ganherd.herd.engine.engines import StackedHerd
from ganherd.recipe.strategy.cellular_config import CellularConfig as Settings
from ganherd.strategies.cellular.cells import Wiring
from ganherd.strategies.cellular.individuals import KINDS, GatheredIndividuals
from ganherd.strategies.member_ranks import MemberRanks, Traffic


class LatestNeighbours(GatheredIndividuals):
    """A snapshot in an asynchronous run: individuals of other ranks may be older or newer than this rank's."""

    def __init__(self, herd: StackedHerd, settings: Settings, ranks: MemberRanks, traffic: Traffic) -> None:
        super().__init__(herd, settings, ranks, traffic)
        self._board: VersionBoard | None = None
        self._counted = 0  # received bytes that `_count` has already added to the traffic

    def begin_unsynced(self, wiring: Wiring, first: int, last: int) -> None:
        """Start a phase in which ranks do not synchronise; it ends when each rank has published version `last`.

        Args:
            wiring: The neighbourhoods.
            first: The version that a rank publishes first, if it has published none.
            last: The last version of the phase.
        """
        if self._board is None:
            comm, placement, bound = self._ranks.comm, self._ranks.placement, self._settings.staleness
            self._board = VersionBoard(comm, placement, wiring.wanted, self.local, bound)
        self._board.begin_unsynced(first, last)

    def take(self, wiring: Wiring, iteration: int) -> None:
        self._copy_local()
        if self._active_board.published < iteration:  # in the first iteration of this process
            self._publish(iteration)
        self.all = self._active_board.take(self.local, iteration)
        self._count()

    def begin(self, kind: str, wiring: Wiring, iteration: int) -> None:
        if kind == KINDS[-1]:
            self.all = self.local  # The old neighbours are no longer needed, and the next ones need their memory.
            if iteration <= self._active_board.last:
                self._publish(iteration)

    def behind(self, iteration: int) -> dict[str, float]:
        """Return by how many iterations received individuals are behind this rank, `most` and on average (`mean`).

        A negative number means that they are ahead.
        """
        behind = [iteration - version for version in self._active_board.versions.values()] or [0]
        return {"most": max(behind), "mean": round(sum(behind) / len(behind), 3)}

    def poll(self) -> None:
        if self._board is not None:
            self._board.poll()

    def end_unsynced(self) -> None:
        """End the phase without synchronisation: wait until everything published has arrived."""
        self._active_board.drain()
        self._count()

    def _count(self) -> None:
        """Add the bytes received since the last call to the traffic."""
        self._traffic.received += self._active_board.bytes_received - self._counted
        self._counted = self._active_board.bytes_received

    @property
    def _active_board(self) -> VersionBoard:
        """Return the board that ranks exchange versions with; `begin_unsynced` must have created it."""
        assert self._board is not None, "no phase without synchronisation has begun"
        return self._board

    def _publish(self, version: int) -> None:
        """Send copies of this rank's individuals to the ranks that meet them, marked with this version number."""
        state = self._herd.state
        self._traffic.exchanges += 1
        self._traffic.count_all_gather(self._ranks, self.local)
        self._active_board.publish({name: state[name] for name in self.local}, version)
