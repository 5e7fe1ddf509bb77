"""Read the state and progress of a run from its folder, while it trains or later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from ganherd.comm import heartbeat
from ganherd.comm.heartbeat import Beat
from ganherd.runs import profile
from ganherd.runs.folder import RunFolder, saved_steps, unfinished
from ganherd.runs.json_lines import read_all, read_last
from ganherd.runs.models import BudgetRecord, EngineRecord, EventRecord, MetricsRecord
from ganherd.runs.results.verdict_record import VerdictRecord
from ganherd.util.errors import UserError, counted
from ganherd.util.files import JsonObject, is_locked

_HEALTH = ("nan", "diverged", "alarm", "calm", "repair")  # events about the health of a member
_LISTED = 1000  # a status lists at most this many of them, the last ones
_UNPRINTED = ("size", "pid", "ganherd", "torch", "exchange_seconds", "time", "period")  # omitted fields of a heartbeat
_RECENT = 10  # records from which the rate is computed
MISSED = ("late", "lost")  # states of a rank whose heartbeats are overdue
_RESTART = 600.0  # seconds that torchrun may take to restart all ranks, until these have found each other
_QUIET = 60.0  # seconds without a record after which a run may be dead, on file systems without locks


@dataclass(frozen=True)
class RankStatus:
    """The state of a rank according to its last heartbeat."""

    beat: Beat
    state: str  # as the rank wrote it, or `late` or `lost`
    heartbeat: float = 0.0  # seconds since the beat was written
    slower: float | None = None  # ratio of its time per step to the median of the other ranks; None if it is not known

    def as_json(self) -> JsonObject:
        """Return what `ganherd status --json` prints about the rank."""
        facts = {name: value for name, value in asdict(self.beat).items() if name not in _UNPRINTED}
        versions = {"ganherd": self.beat.ganherd, "torch": self.beat.torch}
        derived = {"state": self.state, "versions": versions, "heartbeat": self.heartbeat, "slower": self.slower}
        return facts | derived | {"members": list(self.beat.members)}


@dataclass(frozen=True, repr=False)
class RunStatus:
    """The state and progress of a run."""

    run: str
    state: str
    step: int
    steps: int
    rate: float
    seconds_left: float | None
    members: int
    ranks: list[RankStatus]
    engine: EngineRecord
    host: str | None
    heartbeat: float | None  # seconds since the last record
    losses: JsonObject
    profile: dict[str, float]  # seconds of each routine
    staleness: dict[str, float]
    alarms: list[EventRecord]  # the last events about the health of members
    alarms_before: int  # the number of such events before these
    active_alarms: list[EventRecord]  # the alarms that are not over
    reason: str = ""  # why the run ended before its last planned step; empty: it did not
    verdict: VerdictRecord | None = None  # on the mixture of a finished run

    def __repr__(self) -> str:
        alarms = f", {counted(len(self.active_alarms), 'alarms')}" if self.active_alarms else ""
        return f"<RunStatus of {self.run}: {self.state}, step {self.step:,} of {self.steps:,}{alarms}>"

    def as_json(self) -> JsonObject:
        """Return what `ganherd status --json` prints."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "ranks": [rank.as_json() for rank in self.ranks],
            "engine": self.engine.as_json(),
            "alarms": [dict(event) for event in self.alarms],
            "ill": [dict(event) for event in self.active_alarms],
            "verdict": None if self.verdict is None else self.verdict.as_json(),
        }


@dataclass(frozen=True)
class PartsStatus:
    """The state and progress of a run whose members are trained by several jobs."""

    run: str
    parts: list[RunStatus | PartsStatus]
    left: list[str]  # the ranges of members that are not trained yet, in words
    state: str = "parts"

    def as_json(self) -> JsonObject:
        """Return what `ganherd status --json` prints."""
        parts = [part.as_json() for part in self.parts]
        return {"run": self.run, "state": self.state, "parts": parts, "left": self.left}


def describe(path: str | Path) -> RunStatus | PartsStatus:
    """Return the state and progress of a run, or those of its parts if several jobs train its members.

    Raises:
        UserError: There is no run, or its records are damaged.
    """
    folder = RunFolder.open(path)
    try:
        if folder.info.state == "parts":
            each = sorted(path for path in (folder.path / "parts").iterdir() if (path / "run.json").is_file())
            return PartsStatus(str(folder.path), [describe(part) for part in each], unfinished(folder))
        return _describe(folder)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise UserError(f"{folder.info_path} or its records are not what ganherd writes ({error!r}).") from error


def _describe(folder: RunFolder) -> RunStatus:
    """Return the state and progress of a run that one job trains, not several that train parts of it."""
    info, metrics = folder.info, read_last(folder.metrics_path, MetricsRecord, _RECENT)
    if info.budget is None or info.engine is None or info.state is None or info.members is None:
        raise ValueError("state, budget, engine or members are missing")
    last = metrics[-1] if metrics else MetricsRecord(0, {})
    saved = saved_steps(folder.checkpoints)  # a run that was stopped between two records has a newer checkpoint
    step, state, health = max([last.step, *saved]), current_state(folder, info.state, metrics), _Health.read(folder)
    written = folder.metrics_path.stat().st_mtime if folder.metrics_path.exists() else None
    return RunStatus(
        run=str(folder.path),
        state=state,
        step=step,
        steps=max(step, info.budget.steps),  # the steps of a time budget are an estimate
        rate=last.rate,
        seconds_left=seconds_left(metrics, step, info.budget) if metrics and state == "running" else None,
        members=info.members,
        ranks=_ranks(folder, time.time()) if info.ranks and info.ranks.members else [],
        engine=info.engine,
        host=info.host,
        heartbeat=None if written is None else round(time.time() - written, 1),
        losses={key: last.get(key) for key in ("loss_g", "loss_d")},
        profile=profile.of_run(folder.metrics_path),
        staleness=health.exchanges.facts(),
        alarms=list(health.alarms),
        alarms_before=health.earlier,
        active_alarms=health.active_alarms,
        reason=info.reason or "",
        verdict=current_verdict(folder, info.step) if state == "finished" else None,
    )


def current_verdict(folder: RunFolder, step: int | None) -> VerdictRecord | None:
    """Return the verdict on the run's mixture at this step; None if there is none, or only one of another step."""
    verdict = folder.verdict
    return verdict if verdict is not None and verdict.step in (step, None) else None


class _Health:
    """Collect alarms and the ages of exchanged nets from the events of a run."""

    def __init__(self) -> None:
        self.alarms: deque[EventRecord] = deque(maxlen=_LISTED)
        self.earlier = 0  # alarms before these
        self.exchanges = Staleness()
        self._lasting: dict[tuple[int | None, str], EventRecord] = {}  # by member and name of the alarm

    @classmethod
    def read(cls, folder: RunFolder) -> _Health:
        """Return the alarms and ages from all events of a run."""
        health = cls()
        for event in read_all(folder.events_path, EventRecord):
            health.exchanges.add(event)
            if event.kind in _HEALTH:
                health.earlier += len(health.alarms) == _LISTED
                health.alarms.append(event)
                health.add(event)
        return health

    @property
    def active_alarms(self) -> list[EventRecord]:
        """Return the alarms that still last.

        For these no later event reports that they are over (`calm`) or that the member was repaired.
        """
        return list(self._lasting.values())

    def add(self, event: EventRecord) -> None:
        """Begin or end an alarm, according to an event."""
        member, key = event.member, (event.member, event.alarm)
        if event.kind in ("nan", "diverged", "alarm"):
            self._lasting[key] = event
        elif event.kind == "calm":
            self._lasting.pop(key, None)
        elif event.kind == "repair":
            self._lasting = {key: value for key, value in self._lasting.items() if key[0] != member}


class Staleness:
    """Collect how old the nets of neighbours were when ranks took them, in iterations.

    This matters if ranks exchange nets asynchronously; each exchange then writes an event.
    """

    def __init__(self) -> None:
        self._iterations, self._most, self._mean = 0, 0, 0.0

    def add(self, event: Mapping[str, Any]) -> None:
        """Count an event, if it is about an exchange."""
        if event.get("event") == "exchange":
            self._iterations += 1
            self._most = max(self._most, *event["most"])
            self._mean += max(event["mean"])

    def facts(self) -> dict[str, float]:
        """Return the number of exchanges and the ages of nets in iterations; empty if there was no such exchange.

        `most` is the largest age, `mean` the mean age at the rank that was furthest ahead.
        """
        if not self._iterations:
            return {}
        return {"iterations": self._iterations, "most": self._most, "mean": round(self._mean / self._iterations, 3)}


def staleness(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return how old exchanged nets were, from the events of a run; see `Staleness.facts`.

    >>> staleness([{"event": "exchange", "most": [2, 0], "mean": [1.5, -1.0]}, {"event": "finish"}])
    {'iterations': 1, 'most': 2, 'mean': 1.5}
    """
    total = Staleness()
    for event in events:
        total.add(event)
    return total.facts()


def active_alarms(events: Iterable[EventRecord]) -> list[EventRecord]:
    """Return the alarms that still last after these events: they are not over, and the member was not repaired."""
    health = _Health()
    for event in events:
        health.add(event)
    return health.active_alarms


def seconds_left(metrics: Sequence[MetricsRecord], step: int, budget: BudgetRecord) -> float | None:
    """Return the seconds until the deadline or, without one, that the remaining steps take at the last rate.

    None if the rate is not known. `metrics`: the last records. `step`: the last step that is known.

    >>> records = [MetricsRecord.parse({"step": n, "seconds": s}) for n, s in ((10, 4.0), (30, 8.0))]
    >>> seconds_left(records, 35, BudgetRecord(steps=50)), seconds_left(records, 35, BudgetRecord(steps=50, deadline=20.0))
    (3.0, 12.0)
    """
    first = metrics[0] if len(metrics) > 1 else MetricsRecord(0, {})
    last = metrics[-1]
    if budget.deadline is not None:
        return max(0.0, budget.deadline - last.seconds)
    steps_made, seconds = last.step - first.step, last.seconds - first.seconds
    return (budget.steps - step) * seconds / steps_made if steps_made > 0 else None


def _ranks(folder: RunFolder, now: float) -> list[RankStatus]:
    """Return the state of each rank, by rank. `now`: the time in seconds since 1970."""
    beats = heartbeat.read(folder.path / "ranks")
    step_seconds = {beat.rank: beat.step_seconds for beat in beats if beat.members and beat.step_seconds > 0}
    return [
        RankStatus(beat, beat.health(now), round(beat.age(now), 1), slower(step_seconds, beat.rank)) for beat in beats
    ]


def slower(step_seconds: Mapping[int, float], rank: int) -> float | None:
    """Return the ratio of a rank's time per step to the median of the other ranks; None if it is not known.

    >>> slower({0: 0.1, 1: 0.3, 2: 0.12, 3: 0.1}, 1), slower({0: 0.1}, 0)
    (3.0, None)
    """
    others = [seconds for other, seconds in step_seconds.items() if other != rank]
    return round(step_seconds[rank] / median(others), 2) if others and rank in step_seconds else None


def current_state(folder: RunFolder, recorded: str, metrics: Sequence[MetricsRecord]) -> str:
    """Return the state of a run: the recorded one, unless its process ended without changing it.

    A run whose recorded state is `running` is `killed` if no process holds its lock. On file systems without locks it
    is `unknown` if it has not written anything for long. A run that torchrun does not restart in time is `interrupted`.

    Args:
        recorded: The state in run.json.
        metrics: The last records.
    """
    if recorded not in ("running", "restarting"):
        return recorded
    now, locked = time.time(), is_locked(folder.path / ".lock")
    if recorded == "restarting":
        return recorded if locked or now - folder.info_path.stat().st_mtime < _RESTART else "interrupted"
    if locked is None:
        return recorded if _wrote_lately(folder, metrics, now) else "unknown"
    return recorded if locked else "killed"


def _wrote_lately(folder: RunFolder, metrics: Sequence[MetricsRecord], now: float) -> bool:
    """Return whether the run has recently written a heartbeat or a record.

    A heartbeat is recent if it is not overdue. A record is recent for three times the interval between the last two records,
    and for at least `_QUIET` seconds.
    """
    if any(
        beat.state != "finished" and beat.health(now) not in MISSED for beat in heartbeat.read(folder.path / "ranks")
    ):
        return True
    seconds = [record.seconds for record in metrics[-2:]]
    usual = max(_QUIET, 3 * (seconds[-1] - seconds[0])) if seconds else _QUIET
    written = [
        path.stat().st_mtime for path in (folder.metrics_path, folder.events_path, folder.info_path) if path.exists()
    ]
    return now - max(written, default=0.0) <= usual
