"""Handles for messages in transit, as `Communicator.begin_fetch` returns them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator
    from ganherd.herd.state import State


class PendingWork(Protocol):
    """Messages that a backend has started to send and receive. It holds references to their buffers."""

    def poll(self) -> None:
        """Advance the messages, if the backend has no thread that does."""
        ...

    def is_completed(self) -> bool:
        """Advance the messages and return, without waiting, whether all are done."""
        ...

    def wait(self) -> None:
        """Return when all messages are done."""
        ...


class Fetch:
    """Members in transit, as they were when the fetch began."""

    def __init__(self, comm: Communicator, work: PendingWork | None, assemble: Callable[[], State]) -> None:
        """Track one fetch.

        Args:
            comm: The communicator that counts the time spent.
            work: The messages; None if no row crosses between ranks.
            assemble: Returns the members once all messages have arrived.
        """
        self._comm, self._work, self._assemble = comm, work, assemble
        self._members: State | None = None

    def poll(self) -> None:
        """Advance the messages; call it now and then before `wait`, because MPI only progresses inside calls.

        A call costs microseconds.
        """
        if self._work is not None:
            with self._comm._translating_errors():
                self._work.poll()

    def wait(self) -> State:
        """Return the members; later calls return the same tensors."""
        if self._members is None:
            began = time.perf_counter()
            if self._work is not None:
                with self._comm._waiting():
                    self._work.wait()
            self._members, self._work = self._assemble(), None
            self._comm.exchange_seconds += time.perf_counter() - began
        return self._members
