"""Individuals of other ranks as they were last heard of: what cells meet where exchange is async."""

from __future__ import annotations

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.version_board import VersionBoard
from ganherd.herd.engine.engines import Herd
from ganherd.recipe.strategy.cellular_config import CellularConfig as Settings
from ganherd.strategies.cellular.cells import Wiring
from ganherd.strategies.cellular.individuals import KINDS, GatheredIndividuals
from ganherd.strategies.traffic import Traffic


class LatestNeighbours(GatheredIndividuals):
    """A version is the number of iterations that an individual has behind it."""

    def __init__(
        self, herd: Herd, settings: Settings, comm: Communicator, placement: Placement, traffic: Traffic, members: int
    ) -> None:
        super().__init__(herd, settings, comm, placement, traffic, members)
        self._board: VersionBoard | None = None
        self._counted = 0  # bytes of the board that the traffic knows of

    def part(self, wiring: Wiring, first: int, last: int) -> None:
        """Ranks go on by themselves, until each has published version `last`; `first`: where none has published any."""
        if self._board is None:
            bound = self._settings.staleness
            self._board = VersionBoard(self._comm, self._placement, wiring.wanted, self.own, bound)
        self._board.part(first, last)

    def take(self, wiring: Wiring, iteration: int) -> None:
        self._keep_own()
        if self._known.published < iteration:  # the first iteration of this process
            self._publish(iteration)
        self.all = self._known.take(self.own, iteration)
        self._count()

    def begin(self, kind: str, wiring: Wiring, iteration: int) -> None:
        if kind == KINDS[-1]:
            self.all = self.own  # all are judged and settled, and the next ones need the room
            if iteration <= self._known.last:
                self._publish(iteration)

    def behind(self, iteration: int) -> dict[str, float]:
        """By how many iterations the individuals that came are behind; less than none: they are ahead."""
        behind = [iteration - version for version in self._known.versions.values()] or [0]
        return {"most": max(behind), "mean": round(sum(behind) / len(behind), 3)}

    def push(self) -> None:
        if self._board is not None:
            self._board.push()

    def rejoin(self) -> None:
        self._known.settle()
        self._count()

    def _count(self) -> None:
        """What has come since the last time, beside what others count."""
        self._traffic.received += self._known.bytes_received - self._counted
        self._counted = self._known.bytes_received

    @property
    def _known(self) -> VersionBoard:
        assert self._board is not None, "ranks have not parted yet"
        return self._board

    def _publish(self, version: int) -> None:
        state = self._herd.state
        self._traffic.exchanges += 1
        self._traffic.would_gather(self._comm, self._placement, self._members, self.own)
        self._known.publish({name: state[name] for name in self.own}, version)
