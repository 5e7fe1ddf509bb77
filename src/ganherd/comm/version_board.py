"""Exchange members without synchronising: each rank publishes versions of its members and takes the newest of others.

Used if a strategy lets ranks train at their own pace for some time (asynchronous exchange).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.comm import row_messages
from ganherd.comm.row_messages import PendingWork

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator, Placement
    from ganherd.herd.state import State

_HOST = torch.device("cpu")
_STAMP = 8  # bytes of the version number, after the rows of a message
_NAP = 5e-5, 1e-2  # seconds, at least and at most, between two polls while waiting


class VersionBoard:
    """Publish this rank's members and take those of other ranks, without waiting for ranks that are slower.

    A version is a number that a rank counts up with each `publish`. `take` waits only for ranks that are too many versions
    behind. `begin_unsynced` fixes the last version that each rank publishes before all synchronise again, so that no
    rank waits for a message that never comes, and no message is in transit after `drain`. Messages are copied through
    host memory. Messages between two ranks arrive in the order in which they were sent; only the newest one of each
    peer is stored.
    """

    def __init__(
        self,
        comm: Communicator,
        placement: Placement,
        wanted: Sequence[Sequence[int]],
        tensors: State,
        bound: int,
        ahead: int | None = None,
    ) -> None:
        """Set up the channels between this rank and its peers.

        Args:
            comm: The communicator of all ranks that have members.
            placement: The members of each rank.
            wanted: The members that each rank takes.
            tensors: The tensors of members that are published [n, …]; only names, types and shapes matter.
            bound: Members that are taken may be at most this many versions behind this rank's own version.
            ahead: … and at most this many versions ahead of it; None: the same number.
        """
        self._ahead = bound if ahead is None else ahead
        self._comm, self._bound, self._layout = comm, bound, row_messages.Layout.of(tensors)
        self._routes = row_messages.routes(placement.locations(), wanted, comm.rank)
        self._channels: dict[int, _Channel] = {}
        for peer, members in self._routes.receive.items():
            self._channels[peer] = _Channel(comm, peer, len(members) * self._layout.width)
        self._sent: list[PendingWork] = []  # messages that may not have been received yet
        self._newest_allowed = -1  # messages of later versions are not read yet
        self.last = -1  # the version with which all ranks synchronise again
        self.published = -1  # the newest version that this rank published; -1: none yet

    @property
    def versions(self) -> dict[int, int]:
        """Return, for each rank that sends members to this one, the newest version received; -1 if there is none yet."""
        return {peer: channel.version for peer, channel in self._channels.items()}

    @property
    def bytes_received(self) -> int:
        """Return the number of bytes of members' rows received so far."""
        return sum(channel.bytes_received for channel in self._channels.values())

    def begin_unsynced(self, first: int, last: int) -> None:
        """Begin a phase in which ranks do not synchronise. All ranks call this together.

        Each rank then publishes consecutive versions, from the one after its newest up to `last`.

        Args:
            first: The first version of a rank that has published none yet.
            last: The version with which the phase ends.
        """
        self.last = last
        for channel in self._channels.values():
            channel.expect(first, last)
        self.poll()

    def publish(self, tensors: State, version: int) -> None:
        """Send a copy of this rank's members to the ranks that take them, without waiting for the messages to arrive."""
        with self._timed():
            stamp = torch.from_numpy(np.frombuffer(np.int64(version).tobytes(), np.uint8).copy())
            packed = self._layout.pack_all(tensors, self._routes.send, _HOST)
            # Peers that share a message also share its stamped copy.
            stamped = {id(message): torch.cat([message, stamp]) for message in packed.values()}
            outgoing = {peer: stamped[id(message)] for peer, message in packed.items()}
            if outgoing:
                self._sent.append(self._comm._start(outgoing, {}, _HOST, unsynced=True))
                self._comm.bytes_sent += sum(message.numel() - _STAMP for message in outgoing.values())
            self.published = version
            self._receive()

    def take(self, tensors: State, version: int) -> State:
        """Return copies of the wanted members: this rank's current ones, and the newest received from other ranks.

        Received members are at most `bound` versions behind `version`, and at most `ahead` versions ahead of it. This
        waits for ranks that are slower.
        """
        with self._timed():
            self._newest_allowed = version + self._ahead
            oldest = max(0, version - self._bound)
            self._wait(lambda: all(each.version >= oldest for each in self._channels.values()))
            self._newest_allowed += 1  # the next `take` may use it, so it may arrive while this rank trains
            messages = {peer: channel.rows for peer, channel in self._channels.items()}
            return self._layout.assemble(self._layout.copy_local(tensors, self._routes), self._routes, messages)

    def poll(self) -> None:
        """Advance messages; call it now and then, because MPI only progresses inside calls. Costs microseconds."""
        with self._comm._translating_errors():
            self._receive()

    def drain(self) -> None:
        """Wait until every published message has arrived. All ranks call this, after publishing the last version."""
        with self._timed():
            self._newest_allowed = max(self._newest_allowed, self.last)
            self._wait(lambda: not self._sent and all(each.is_drained for each in self._channels.values()))

    def _receive(self) -> None:
        """Store messages that have arrived, and release sent messages that were delivered."""
        self._sent = [work for work in self._sent if not work.is_completed()]
        for channel in self._channels.values():
            channel.receive(self._newest_allowed)

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """Poll until a condition holds; the pauses between polls grow with the time waited."""
        self._receive()
        if is_enough():
            return
        with self._comm._waiting():
            began = time.monotonic()
            while not is_enough():
                time.sleep(min(max(_NAP[0], (time.monotonic() - began) / 50), _NAP[1]))
                self._receive()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the time of the block to the communicator's exchange time, and translate the backend's errors."""
        began = time.perf_counter()
        with self._comm._translating_errors():
            yield
        self._comm.exchange_seconds += time.perf_counter() - began


class _Channel:
    """Receive the messages of one peer: one buffer has the newest message, a second one receives the next."""

    def __init__(self, comm: Communicator, peer: int, num_bytes: int) -> None:
        """Prepare two buffers for the messages of a peer; `num_bytes` is the length of a message without its version."""
        self._comm, self._peer, self._num_bytes = comm, peer, num_bytes
        self._newest, self._spare = (torch.empty(num_bytes + _STAMP, dtype=torch.uint8) for _ in range(2))
        self._incoming: PendingWork | None = None  # into the spare buffer
        self._next, self._last = 0, -1  # the versions of the next message and of the last one that will come
        self.version = -1
        self.bytes_received = 0

    @property
    def rows(self) -> Tensor:
        """Return the rows of the newest message."""
        return self._newest[: self._num_bytes]

    @property
    def is_drained(self) -> bool:
        """Return whether the last expected message has arrived."""
        return self._next > self._last

    def expect(self, first: int, last: int) -> None:
        """Expect messages up to version `last`, beginning with `first` if none has arrived yet."""
        self._next, self._last = max(self._next, first), last

    def receive(self, newest_allowed: int) -> None:
        """Store all messages that have arrived, up to a version, and start to receive the next one."""
        while not self.is_drained:
            if self._incoming is None:
                self._incoming = self._comm._start({}, {self._peer: self._spare}, _HOST, unsynced=True)
            if not self._incoming.is_completed() or self._next > newest_allowed:
                return
            self._newest, self._spare, self._incoming = self._spare, self._newest, None
            self.version = int(np.frombuffer(self._newest[self._num_bytes :].numpy().tobytes(), np.int64)[0])
            self._next = self.version + 1
            self.bytes_received += self._num_bytes
            self._comm.bytes_received += self._num_bytes
