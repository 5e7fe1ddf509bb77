"""Signs of life: each rank writes what it does to a small file of its own, every few seconds, and anyone can read them."""

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
LATE = 3.0  # periods without a beat
LOST = 12.0
STATES = ("inactive", "processing", "finished")  # as a rank says itself; `late` and `lost` is what others say of it
_FILE = re.compile(r"rank-(\d{3,})\.json")


@dataclass(frozen=True)
class Beat:
    """What a rank said last."""

    rank: int
    size: int  # ranks of the job
    state: str
    host: str
    pid: int
    cores: int = 0  # of its host, that it may use
    memory: int = 0  # bytes
    gpus: str = ""
    ganherd: str = ""  # its version
    torch: str = ""
    members: tuple[int, ...] = ()
    step: int = 0
    rate: float = 0.0  # member-steps per second of this rank
    step_seconds: float = 0.0  # that a step of all its members takes it, waiting for others not counted
    waits: float = 0.0  # seconds that it has been waiting for other ranks, at this moment
    bytes_sent: int = 0
    bytes_received: int = 0
    exchange_seconds: float = 0.0
    exchanges: int = 0  # meetings at which members travelled between ranks
    received: int = 0  # bytes of members that came to this rank at these
    gathered: int = 0  # bytes that would have come, had every rank been sent all members
    time: float = 0.0  # when it was written, seconds since 1970
    period: float = PERIOD

    def age(self, now: float) -> float:
        """Seconds since it was written; the clocks of the hosts may differ a little."""
        return max(0.0, now - self.time)

    def health(self, now: float) -> str:
        """Its state; of one that should have been heard from meanwhile: `late`, then `lost`.

        >>> beat = Beat(0, 1, "processing", "node7", 4711, time=1000.0)
        >>> [beat.health(1000.0 + age) for age in (5, 20, 100)]
        ['processing', 'late', 'lost']
        """
        if self.state == "finished" or self.age(now) <= LATE * self.period:
            return self.state
        return "late" if self.age(now) <= LOST * self.period else "lost"


class Heartbeat:
    """A thread that writes this rank's file. What is written is set by `note`, which costs nothing; nothing here can fail.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Heartbeat(folder, rank=0, size=1, members=[0, 1]) as heart:
    ...     heart.note("processing", step=120, rate=50.0)
    >>> [(beat.rank, beat.state, beat.step) for beat in read(folder)]
    [(0, 'finished', 120)]
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        members: Sequence[int] = (),
        comm: Communicator | None = None,
        period: float = PERIOD,
    ) -> None:
        """`folder`: the run's `ranks/`. `comm`: whose traffic and waiting is told."""
        self.folder, self.comm, self.period = folder, comm, period
        self._beat = Beat(rank, size, "inactive", platform.node(), os.getpid(), members=tuple(members), period=period)
        self.listener: Callable[[float], None] | None = None  # is called after every beat, with the period
        self._wake, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def now(self) -> Beat:
        """What the next beat will say, but for what is known when it is written."""
        return self._beat

    @property
    def path(self) -> Path:
        return self.folder / f"rank-{self._beat.rank:03d}.json"

    def note(self, state: str | None = None, **facts: Any) -> None:
        """What the next beat will say, as step and rate; a new state is written at once."""
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
        """Ends with `finished`, or as it was when an error ended it: then it will be late, and lost."""
        if kind is None:
            self.note("finished")
        self._over = True
        self._wake.set()
        self._thread.join(self.period)  # a disk that hangs does not keep the rank

    def _run(self) -> None:
        while True:
            self._wake.clear()
            over = self._over
            with suppress(OSError):  # a full disk or one that is gone: the training goes on, and others see a late rank
                self._write()
            if over:
                return
            if self.listener is not None:
                # nor does what it finds, or a file that is closed by now
                with suppress(OSError, UserError, ValueError):
                    self.listener(self.period)
            self._wake.wait(self.period)

    def _write(self) -> None:
        now: dict[str, Any] = {"time": time.time()}
        if (comm := self.comm) is not None:
            since = comm.waits_since
            now |= {
                "waits": 0.0 if since is None else round(time.monotonic() - since, 3),
                "bytes_sent": comm.bytes_sent,
                "bytes_received": comm.bytes_received,
                "exchange_seconds": round(comm.seconds, 3),
            }
        self.folder.mkdir(parents=True, exist_ok=True)
        files.atomic_write(self.path, json.dumps(asdict(replace(self._beat, **now))), sync=False)


def read(folder: Path) -> list[Beat]:
    """The last beat of every rank, in order; none where no rank has written any.

    Of an earlier job on the same run with more ranks files may be left: those beyond the newest job's size are not shown.
    """
    found = [_parse(path) for path in sorted(folder.glob("rank-*.json")) if _FILE.fullmatch(path.name)]
    beats = sorted((beat for beat in found if beat is not None), key=lambda beat: beat.rank)
    size = max(beats, key=lambda beat: beat.time).size if beats else 0
    return [beat for beat in beats if beat.rank < size]


def _parse(path: Path) -> Beat | None:
    """One file; None where it is being replaced just now."""
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
