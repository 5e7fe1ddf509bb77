"""Write heartbeats: each rank writes its state to a file every few seconds, and rank 0 reports ranks that stop writing."""

from __future__ import annotations

import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ganherd.util import files
from ganherd.util.errors import UserError, first_invalid

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator

PERIOD = 5.0  # seconds between two beats
LATE = 3.0  # periods without a beat after which a rank counts as late
LOST = 12.0  # periods without a beat after which a rank counts as lost
State = Literal["inactive", "processing", "finished"]  # written by a rank itself; readers derive `late` and `lost`
_AT_ONCE = 64  # files read with each beat; with more ranks each file is read less often
_FILE = re.compile(r"rank-(\d{3,})\.json")
Report = Callable[[str, Mapping[str, Any]], None]  # takes an event, `late` or `back`, and its facts


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a rank. Field names are those of its file."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # for beats that are read

    rank: int
    size: int  # number of ranks in the job
    state: State
    host: str
    pid: int
    cores: int = 0  # cores of its host that it may use
    memory: int = 0  # bytes of memory of its host
    gpus: str = ""
    ganherd: str = ""  # version
    torch: str = ""
    members: tuple[int, ...] = ()
    step: int = 0
    rate: float = 0.0  # member-steps per second of this rank
    step_seconds: float = 0.0  # mean seconds of one step of all its members, without waiting for other ranks
    waits: float = 0.0  # seconds since it began to wait for other ranks; 0: it does not wait
    bytes_sent: int = 0
    bytes_received: int = 0
    exchange_seconds: float = 0.0
    exchanges: int = 0  # meetings at which members were sent between ranks
    received: int = 0  # bytes of members that this rank received at these meetings
    gathered: int = 0  # bytes that this rank would have received if all members were sent to all ranks instead
    time: float = 0.0  # when it was written, in seconds since 1970
    period: Annotated[float, Field(gt=0)] = PERIOD  # seconds between two beats

    def age(self, now: float) -> float:
        """Return the seconds since the beat was written; clocks of hosts may differ a little."""
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
    """Write the heartbeat file of this rank regularly, from a thread, inside a `with` block.

    Errors never reach the caller.

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
        """Return the content of the next beat; time and traffic are only filled in when it is written."""
        return self._beat

    @property
    def path(self) -> Path:
        """Return the file of this rank."""
        return self.folder / f"rank-{self._beat.rank:03d}.json"

    def note(self, state: State | None = None, **facts: Any) -> None:
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
    """Return the last beat of every rank, by rank; empty if no rank has written one.

    Files of ranks that only an earlier job on the same run had are left out.
    """
    parsed = [_parse(path) for path in sorted(folder.glob("rank-*.json")) if _FILE.fullmatch(path.name)]
    beats = sorted((beat for beat in parsed if beat is not None), key=lambda beat: beat.rank)
    world_size = max(beats, key=lambda beat: beat.time).size if beats else 0
    return [beat for beat in beats if beat.rank < world_size]


@cache
def _beats() -> TypeAdapter[Beat]:
    """Return the validator of heartbeat files. It is built only once, because that takes milliseconds."""
    return TypeAdapter(Beat)


def _parse(path: Path) -> Beat | None:
    """Return the beat in a file; None if the file cannot be read, e.g. because it is being replaced right now."""
    try:
        return _beats().validate_json(files.read(path, files.MOST_JSON))
    except OSError:
        return None
    except ValidationError as error:
        raise UserError(f"{path} is not what ganherd writes ({first_invalid(error)}).") from None


class MissingRanks:
    """Report ranks whose heartbeats are late, by the same rule as `ganherd status`, and ranks that return.

    Heartbeats of an earlier job on the same run are ignored.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, report: Report) -> None:
        """Watch the heartbeats of a run.

        Args:
            folder: The run's `ranks/`.
            rank: This rank, which is not watched.
            world_size: The number of ranks.
            report: Called with each event.
        """
        self._folder, self._rank, self._report = folder, rank, report
        self._every, self._turn = -(-world_size // _AT_ONCE), 0  # beats between two checks
        self._since = self._last_check = time.time()  # missing beats before `_since` are not counted
        self._missing: dict[int, float] = {}  # rank -> time of its last heartbeat

    def look(self, period: float) -> None:
        """Check the other ranks; called with every beat of this rank, each `period` seconds."""
        self._turn += 1
        if self._turn % self._every:
            return
        now = time.time()
        if now - self._last_check > (LATE + self._every) * period:
            self._since = now  # this rank itself was suspended, so it cannot tell whether others were silent
        self._last_check = now
        for beat in read(self._folder):
            if beat.rank == self._rank or (beat.state == "finished" and beat.time < self._since):
                continue
            self._check(beat, now)

    def _check(self, beat: Beat, now: float) -> None:
        """Report if a rank has become late, or has returned."""
        last_beat = max(beat.time, self._since)
        is_silent = replace(beat, time=last_beat).health(now) in ("late", "lost")
        facts: dict[str, Any] = {"rank": beat.rank, "host": beat.host, "members": list(beat.members)}
        if is_silent and beat.rank not in self._missing:
            self._missing[beat.rank] = last_beat
            self._report("late", {**facts, "since": round(last_beat, 3), "at": beat.step})
        elif not is_silent and beat.rank in self._missing:
            seconds = beat.time - self._missing.pop(beat.rank)
            self._report("back", {**facts, "seconds": round(max(0.0, seconds), 1), "at": beat.step})


def describe(event: str, facts: Mapping[str, Any]) -> str:
    """Return a line for the log about an event that `MissingRanks` reports.

    >>> describe("back", {"rank": 1, "host": "n7", "seconds": 41.3, "at": 1200})
    'rank 1 on n7 is back: nothing was heard of it for 41 s'
    """
    name = f"rank {facts['rank']} on {facts['host']}"
    if event == "back":
        return f"{name} is back: nothing was heard of it for {facts['seconds']:.0f} s"
    when = time.strftime("%H:%M:%S", time.localtime(facts["since"]))
    return f"{name} is late: nothing was heard of it since {when}, when it was at step {facts['at']:,}; the others wait for it"
