"""Members of other ranks as they were last heard of: each rank publishes its own under a version, and takes the newest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.comm import row_messages
from ganherd.comm.pending import PendingWork

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator, Placement
    from ganherd.herd.state import State

_HOST = torch.device("cpu")
_STAMP = 8  # bytes of a version, behind the rows of a message
_NAP = 5e-5, 1e-2  # seconds, at least and at most, between two looks whether a message has come


class VersionBoard:
    """Ranks part; then each publishes and takes when it likes, and waits only for a rank that is too far behind.

    When they part they say up to which version each of them will publish before all are together again. So nobody waits for a
    message that never comes, and nothing is under way when they have settled. Messages go through the host; those of a pair
    come in the order in which they were sent, and of each peer the newest is kept.
    """

    def __init__(
        self, comm: Communicator, placement: Placement, wanted: Sequence[Sequence[int]], parts: State, bound: int
    ) -> None:
        """`wanted`: the members that each rank takes. `parts`: what is published of a member, with any values. `bound`: by how
        many versions what is taken may be older, or newer, than what this rank publishes."""
        self._comm, self._bound, self._layout = comm, bound, row_messages.Layout.of(parts)
        self._routes = row_messages.routes(placement.home(), wanted, comm.rank)
        sizes = {peer: len(members) * self._layout.width for peer, members in self._routes.receive.items()}
        self._channels = {peer: _Channel(comm, peer, size) for peer, size in sizes.items()}
        self._sent: list[PendingWork] = []  # that may not have been received yet
        self._most = -1  # what comes later than this version is left for later
        self.last = -1  # the version with which all are together again
        self.published = -1  # the newest version of this rank's own; -1: none yet

    @property
    def versions(self) -> dict[int, int]:
        """Of each rank that members come from, the version that is known here; -1: none yet."""
        return {peer: channel.version for peer, channel in self._channels.items()}

    @property
    def bytes_received(self) -> int:
        """Of members' rows, up to now."""
        return sum(channel.bytes_received for channel in self._channels.values())

    def part(self, first: int, last: int) -> None:
        """Until all are together again, each rank will publish up to version `last`, one after another: from the one after its
        newest on, or from `first` on, where it has published none. Called by all ranks together."""
        self.last = last
        for channel in self._channels.values():
            channel.expect(first, last)
        self.push()

    def publish(self, parts: State, version: int) -> None:
        """This rank's own members as they are now, whatever happens to them afterwards; waits for nobody."""
        with self._counted():
            stamp = torch.from_numpy(np.frombuffer(np.int64(version).tobytes(), np.uint8).copy())
            packed = self._layout.pack_all(parts, self._routes.send, _HOST)
            stamped = {id(message): torch.cat([message, stamp]) for message in packed.values()}  # once, as they are
            outgoing = {peer: stamped[id(message)] for peer, message in packed.items()}
            if outgoing:
                self._sent.append(self._comm._start(outgoing, {}, _HOST, apart=True))
                self._comm.bytes_sent += sum(message.numel() - _STAMP for message in outgoing.values())
            self.published = version
            self._look()

    def take(self, parts: State, version: int) -> State:
        """Copies of the wanted members: this rank's own, and of the others the newest that came and are within the bound of
        `version`. A rank of which only older ones came is waited for."""
        with self._counted():
            self._most = version + self._bound
            oldest = max(0, version - self._bound)
            self._wait(lambda: all(each.version >= oldest for each in self._channels.values()))
            self._most += 1  # while it trains, what the next version may take
            came = {peer: channel.rows for peer, channel in self._channels.items()}
            return self._layout.fill(self._layout.own(parts, self._routes), self._routes, came)

    def push(self) -> None:
        """To be called now and then: under MPI messages move while somebody looks. Costs microseconds."""
        with self._comm._watched():
            self._look()

    def settle(self) -> None:
        """All that was published comes. Called by all ranks together, when each has published the last version."""
        with self._counted():
            self._most = max(self._most, self.last)
            self._wait(lambda: not self._sent and all(each.is_settled for each in self._channels.values()))

    def _look(self) -> None:
        self._sent = [work for work in self._sent if not work.ready()]
        for channel in self._channels.values():
            channel.look(self._most)

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """Sleeps between looks, longer the longer it takes."""
        self._look()
        if is_enough():
            return
        with self._comm._waiting():
            began = time.monotonic()
            while not is_enough():
                time.sleep(min(max(_NAP[0], (time.monotonic() - began) / 50), _NAP[1]))
                self._look()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.perf_counter()
        with self._comm._watched():
            yield
        self._comm.seconds += time.perf_counter() - began


class _Channel:
    """What one peer publishes for this rank: the newest message, and the next one on its way."""

    def __init__(self, comm: Communicator, peer: int, size: int) -> None:
        """`size`: bytes of rows in a message."""
        self._comm, self._peer, self._size = comm, peer, size
        self._newest, self._spare = (torch.empty(size + _STAMP, dtype=torch.uint8) for _ in range(2))
        self._coming: PendingWork | None = None  # into the spare one
        self._next, self._last = 0, -1  # versions: of the next message, and of the last that will come
        self.version = -1
        self.bytes_received = 0

    @property
    def rows(self) -> Tensor:
        return self._newest[: self._size]

    @property
    def is_settled(self) -> bool:
        return self._next > self._last

    def expect(self, first: int, last: int) -> None:
        self._next, self._last = max(self._next, first), last

    def look(self, most: int) -> None:
        """Takes over all that came, up to that version, and lets the next one come."""
        while not self.is_settled:
            if self._coming is None:
                self._coming = self._comm._start({}, {self._peer: self._spare}, _HOST, apart=True)
            if not self._coming.ready() or self._next > most:
                return
            self._newest, self._spare, self._coming = self._spare, self._newest, None
            self.version = int(np.frombuffer(self._newest[self._size :].numpy().tobytes(), np.int64)[0])
            self._next = self.version + 1
            self.bytes_received += self._size
            self._comm.bytes_received += self._size
