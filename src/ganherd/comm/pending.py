"""Messages under way, and the members that they bring: what `Communicator.begin_fetch` answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator
    from ganherd.herd.state import State


class PendingWork(Protocol):
    """Messages that an engine has begun to send and to receive; it keeps their buffers."""

    def push(self) -> None:
        """Moves them on, where the engine has no thread for that."""
        ...

    def ready(self) -> bool:
        """Moves them on, and says whether all are done; for who does not want to wait."""
        ...

    def wait(self) -> None:
        """Returns when all are done."""
        ...


class Fetch:
    """Members on their way. They are what they were when the fetch was begun."""

    def __init__(self, comm: Communicator, work: PendingWork | None, assemble: Callable[[], State]) -> None:
        """`work`: None where nothing crosses. `assemble`: the members, once all messages are there."""
        self._comm, self._work, self._assemble = comm, work, assemble
        self._found: State | None = None

    def push(self) -> None:
        """To be called now and then until `wait`: under MPI messages move while somebody looks. Costs microseconds."""
        if self._work is not None:
            with self._comm._watched():
                self._work.push()

    def wait(self) -> State:
        """The members; a second time the same ones."""
        if self._found is None:
            began = time.perf_counter()
            if self._work is not None:
                with self._comm._waiting():
                    self._work.wait()
            self._found, self._work = self._assemble(), None
            self._comm.seconds += time.perf_counter() - began
        return self._found
