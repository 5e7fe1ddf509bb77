"""Heartbeats: each rank writes its state to a small file every few seconds, for `ganherd status` and for other ranks."""

from __future__ import annotations

import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ganherd.util import files
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator

PERIOD = 5.0  # seconds between two beats
LATE = 3.0  # periods without a beat after which a rank counts as late
LOST = 12.0  # the same for a lost rank
STATES = ("inactive", "processing", "finished")  # written by a rank itself; readers derive `late` and `lost`
_FILE = re.compile(r"rank-(\d{3,})\.json")


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a rank. Field names are those of its file."""

    rank: int
    size: int  # number of ranks in the job
    state: str
    host: str
    pid: int
    cores: int = 0  # of its host that it may use
    memory: int = 0  # bytes
    gpus: str = ""
    ganherd: str = ""  # version
    torch: str = ""
    members: tuple[int, ...] = ()
    step: int = 0
    rate: float = 0.0  # member-steps per second of this rank
    step_seconds: float = 0.0  # per step of all its members, without waiting for other ranks
    waits: float = 0.0  # seconds since it began to wait for other ranks; 0: it does not wait
    bytes_sent: int = 0
    bytes_received: int = 0
    exchange_seconds: float = 0.0
    exchanges: int = 0  # meetings at which members were sent between ranks
    received: int = 0  # bytes of members that this rank received at these meetings
    gathered: int = 0  # bytes that an all-gather of all members would have brought
    time: float = 0.0  # when it was written, in seconds since 1970
    period: float = PERIOD

    def age(self, now: float) -> float:
        """Return the seconds since it was written; clocks of hosts may differ a little."""
        return max(0.0, now - self.time)

    def health(self, now: float) -> str:
        """Return the state of the rank, or `late` or `lost` if its next beats are overdue.

        >>> beat = Beat(0, 1, "processing", "node7", 4711, time=1000.0)
        >>> [beat.health(1000.0 + age) for age in (5, 20, 100)]
        ['processing', 'late', 'lost']
        """
        if self.state == "finished" or self.age(now) <= LATE * self.period:
            return self.state
        return "late" if self.age(now) <= LOST * self.period else "lost"


class Heartbeat:
    """Write this rank's file in a thread. `note` sets the content and costs nothing; errors never reach the caller.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Heartbeat(folder, rank=0, world_size=1, members=[0, 1]) as heart:
    ...     heart.note("processing", step=120, rate=50.0)
    >>> [(beat.rank, beat.state, beat.step) for beat in read(folder)]
    [(0, 'finished', 120)]
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        members: Sequence[int] = (),
        comm: Communicator | None = None,
        period: float = PERIOD,
    ) -> None:
        """Prepare the heartbeat of a rank; the thread runs inside a `with` block.

        Args:
            folder: The run's `ranks/`.
            rank: This rank.
            world_size: The number of ranks in the job.
            members: The members of this rank.
            comm: The communicator whose traffic and waiting time are written.
            period: Seconds between two beats.
        """
        self.folder, self.comm, self.period = folder, comm, period
        self._beat = Beat(
            rank, world_size, "inactive", platform.node(), os.getpid(), members=tuple(members), period=period
        )
        self.listener: Callable[[float], None] | None = None  # called after every beat, with the period
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def now(self) -> Beat:
        """Return the content of the next beat, without the values that are read when it is written."""
        return self._beat

    @property
    def path(self) -> Path:
        """Return the file of this rank."""
        return self.folder / f"rank-{self._beat.rank:03d}.json"

    def note(self, state: str | None = None, **facts: Any) -> None:
        """Set fields of the next beat, such as step and rate; a new state is written at once."""
        before = self._beat.state
        self._beat = replace(self._beat, **facts, state=state or before)
        if self._beat.state != before:
            self._wake.set()

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Write `finished`; after an error write nothing, so that readers will see the rank as late, then lost."""
        if kind is None:
            self.note("finished")
        self._closed = True
        self._wake.set()
        self._thread.join(self.period)  # A hanging disk must not block the rank.

    def _run(self) -> None:
        """Write a beat each period until the heartbeat is closed."""
        while True:
            self._wake.clear()
            is_last = self._closed
            with suppress(OSError):  # If the disk is full or gone, training continues, and others see a late rank.
                self._write()
            if is_last:
                return
            if self.listener is not None:
                # Errors of the listener, or a file that is closed by now, must not end training either.
                with suppress(OSError, UserError, ValueError):
                    self.listener(self.period)
            self._wake.wait(self.period)

    def _write(self) -> None:
        """Replace the file of this rank by the current beat."""
        now: dict[str, Any] = {"time": time.time()}
        if (comm := self.comm) is not None:
            since = comm.waiting_since
            now |= {
                "waits": 0.0 if since is None else round(time.monotonic() - since, 3),
                "bytes_sent": comm.bytes_sent,
                "bytes_received": comm.bytes_received,
                "exchange_seconds": round(comm.exchange_seconds, 3),
            }
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not synced: losing a beat in a power cut does not matter.
        files.atomic_write(self.path, json.dumps(asdict(replace(self._beat, **now))), sync=False)


def read(folder: Path) -> list[Beat]:
    """Return the last beat of every rank, in order; empty if no rank has written one.

    Files of an earlier job on the same run with more ranks are left out.
    """
    parsed = [_parse(path) for path in sorted(folder.glob("rank-*.json")) if _FILE.fullmatch(path.name)]
    beats = sorted((beat for beat in parsed if beat is not None), key=lambda beat: beat.rank)
    world_size = max(beats, key=lambda beat: beat.time).size if beats else 0
    return [beat for beat in beats if beat.rank < world_size]


def _parse(path: Path) -> Beat | None:
    """Return the beat in a file; None if the file is being replaced right now."""
    try:
        facts = files.read_json(path)
    except OSError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is not what ganherd writes ({error}).") from error
    try:
        beat = Beat(**{**facts, "members": tuple(facts["members"])})
        for field in fields(Beat):
            value, kind = getattr(beat, field.name), str(field.type)
            fits = {"int": type(value) is int, "float": type(value) in (int, float), "str": type(value) is str}
            if not fits.get(kind, all(type(member) is int for member in beat.members)):
                raise ValueError(field.name)
        if beat.state not in STATES or not beat.period > 0:
            raise ValueError("state")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not what ganherd writes ({error}).") from error
    return beat
