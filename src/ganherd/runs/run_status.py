"""Where a run stands, read from its folder alone: from another terminal, while it trains or long after."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from ganherd.comm.liveness import heartbeat
from ganherd.runs import profile, staleness
from ganherd.runs.folder import RunFolder
from ganherd.runs.folder import steps as saved_steps
from ganherd.runs.json_lines import read_all, read_last
from ganherd.runs.part_folders import unfinished
from ganherd.util.errors import UserError, few
from ganherd.util.files import is_locked
from ganherd.util.text import duration, size, words

_TOLD = ("nan", "diverged", "alarm", "calm", "repair")  # events about the health of a member
_SHOWN = 10  # of them, the last
_LISTED = 1000  # of them, for programs: the last
_RECENT = 10  # records, which tell the pace
_MISSED = ("late", "lost")
_STATES = {  # those that are not told by their name
    "restarting": "restarting (a rank was lost, and torchrun starts all of them again)",
    "unknown": "running or killed, which is not known (this file system has no locks)",
}
_ENDED = {"killed": "", "interrupted": "", "unknown": "if no process trains it any more, "}
_RESTART = 600.0  # seconds that torchrun, and ranks that find each other, may take
_QUIET = 60.0  # seconds without a word that mean nothing where no lock can be asked for
_SLOW = 1.5  # times as long as the middle one of the others takes for a step: the others wait for it


def describe(path: str | Path) -> dict[str, Any]:
    folder = RunFolder.open(path)
    try:
        if folder.info.get("state") == "parts":
            each = sorted(path for path in (folder.path / "parts").iterdir() if (path / "run.json").is_file())
            found = [describe(part) for part in each]
            return {"run": str(folder.path), "state": "parts", "parts": found, "left": unfinished(folder)}
        return _describe(folder)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise UserError(f"{folder.info_path} or its records are not what ganherd writes ({error!r}).") from error


def _describe(folder: RunFolder) -> dict[str, Any]:
    info, metrics, events = folder.info, read_last(folder.metrics_path, _RECENT), _Told(folder)
    last = metrics[-1] if metrics else {}
    saved = saved_steps(folder.checkpoints)  # a stop between two records is saved, but not recorded
    step, steps = max([int(last.get("step", 0)), *saved]), int(info["budget"]["steps"])
    state = str(info["state"])
    state = _state(folder, state, metrics)
    rate = float(last.get("rate", 0.0))
    members = int(info["members"])
    return {
        "run": str(folder.path),
        "state": state,
        "step": step,
        "steps": steps,
        "rate": rate,
        "seconds_left": _left(metrics, step, steps) if metrics and state == "running" else None,
        "members": members,
        "ranks": _ranks(folder, time.time()) if info.get("ranks") else [],
        "engine": {"name": str(info["engine"]["name"]), **info["engine"]},
        "host": info["host"],
        "heartbeat": round(time.time() - folder.metrics_path.stat().st_mtime, 1)
        if folder.metrics_path.exists()
        else None,
        "losses": {key: last.get(key) for key in ("loss_g", "loss_d")},
        "profile": profile.of_run(folder.metrics_path),
        "staleness": events.staleness,
        "alarms": list(events.alarms),
        "alarms_before": events.before,
        "ill": events.ill,
    }


class _Told:
    """What the events of a run say of its health and its exchange, read line by line."""

    def __init__(self, folder: RunFolder) -> None:
        self.alarms: deque[dict[str, Any]] = deque(maxlen=_LISTED)
        self.before = 0  # alarms before these
        exchanged, health = staleness.Staleness(), _Health()
        for event in read_all(folder.events_path):
            exchanged.add(event)
            if event.get("event") in _TOLD:
                self.before += len(self.alarms) == _LISTED
                self.alarms.append(event)
                health.add(event)
        self.staleness, self.ill = exchanged.facts(), list(health.still.values())


def _left(metrics: list[dict[str, Any]], step: int, steps: int) -> float | None:
    """Seconds that the rest takes at the pace of the last records.

    >>> _left([{"step": 10, "seconds": 4.0}, {"step": 30, "seconds": 8.0}], 35, 50)
    3.0
    """
    first = metrics[0] if len(metrics) > 1 else {"step": 0, "seconds": 0.0}
    last = metrics[-1]
    made, took = int(last["step"]) - int(first["step"]), float(last["seconds"]) - float(first["seconds"])
    return (steps - step) * took / made if made > 0 else None


def _ranks(folder: RunFolder, now: float) -> list[dict[str, Any]]:
    """What the ranks of the run said last, and what is to be said of those that are slow or have not been heard from."""
    beats = heartbeat.read(folder.path / "ranks")
    takes = {beat.rank: beat.step_seconds for beat in beats if beat.members and beat.step_seconds > 0}
    return [
        {
            "rank": beat.rank,
            "state": beat.health(now),
            "host": beat.host,
            "cores": beat.cores,
            "memory": beat.memory,
            "gpus": beat.gpus,
            "versions": {"ganherd": beat.ganherd, "torch": beat.torch},
            "members": list(beat.members),
            "step": beat.step,
            "rate": beat.rate,
            "heartbeat": round(beat.age(now), 1),
            "waits": beat.waits,
            "bytes_sent": beat.bytes_sent,
            "bytes_received": beat.bytes_received,
            "step_seconds": beat.step_seconds,
            "slower": slower(takes, beat.rank),
            "exchanges": beat.exchanges,
            "received": beat.received,
            "gathered": beat.gathered,
        }
        for beat in beats
    ]


def slower(takes: dict[int, float], rank: int) -> float | None:
    """How many times as long as the middle one of the others a rank takes for a step; none where that cannot be said.

    >>> slower({0: 0.1, 1: 0.3, 2: 0.12, 3: 0.1}, 1), slower({0: 0.1}, 0)
    (3.0, None)
    """
    others = [seconds for other, seconds in takes.items() if other != rank]
    return round(takes[rank] / median(others), 2) if others and rank in takes else None


def ill(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The alarms that are not over: neither calm nor repaired since."""
    health = _Health()
    for event in events:
        health.add(event)
    return list(health.still.values())


class _Health:
    """The same, event by event."""

    def __init__(self) -> None:
        self.still: dict[tuple[str, str], dict[str, Any]] = {}  # by member and name of the alarm

    def add(self, event: dict[str, Any]) -> None:
        kind, member = event.get("event"), str(event.get("member"))
        if kind in ("nan", "diverged", "alarm"):
            self.still[member, alarm_of(event)] = event
        elif kind == "calm":
            self.still.pop((member, alarm_of(event)), None)
        elif kind == "repair":
            self.still = {key: value for key, value in self.still.items() if key[0] != member}


def alarm_of(event: dict[str, Any]) -> str:
    """The name of the alarm that an event tells of.

    >>> alarm_of({"event": "calm", "what": "dead_critic"}), alarm_of({"event": "nan"})
    ('dead_critic', 'nan')
    """
    return str(event.get("what", event.get("event")))


def text(facts: dict[str, Any]) -> str:
    if "parts" in facts:
        lines = [f"{facts['run']}: trained in parts, which are joined when all are finished"]
        left = f"members {', '.join(facts['left'])}" if facts["left"] else "to join them, by any part's command again"
        return "\n".join([*lines, *(text(part) for part in facts["parts"]), f"left: {left}"])
    left = f", {duration(facts['seconds_left'])} left" if facts["seconds_left"] is not None else ""
    lines = [
        f"{facts['run']}: {_STATES.get(facts['state'], facts['state'])}, step {facts['step']:,} of {facts['steps']:,}{left}",
        f"{facts['members']} members on {facts['host']} ({facts['engine']['name']}), {facts['rate']:,.0f} member-steps/s"
        + (f", last record {duration(facts['heartbeat'])} ago" if facts["heartbeat"] is not None else ""),
    ]
    if facts["state"] == "running":
        ranks = facts.get("ranks", [])
        lines += [_rank_line(rank) for rank in ranks]
        if missed := [f"rank {rank['rank']} on {rank['host']}" for rank in ranks if rank["state"] in _MISSED]:
            lines.append(f"not heard from: {', '.join(missed)}")
        if slow := [_late(rank) for rank in ranks if (rank.get("slower") or 0) >= _SLOW]:
            lines.append(f"the others wait for: {', '.join(slow)}")
    lines += _traffic(facts.get("ranks", []))
    lines += [staleness.in_words(facts["staleness"])] if facts.get("staleness") else []
    if spent := facts.get("profile"):
        whole = sum(spent.values()) or 1.0
        each = sorted(spent.items(), key=lambda item: -item[1])
        lines.append(f"of its time: {', '.join(f'{name} {s:.1f} s ({s / whole:.0%})' for name, s in each)}")
    if (earlier := facts.get("alarms_before", 0) + len(facts["alarms"]) - _SHOWN) > 0:
        lines.append(f"… {earlier:,} before these in events.jsonl")
    for alarm in facts["alarms"][-_SHOWN:]:
        lines.append(f"step {alarm['step']:,}: {alarm.get('name', '')} {_told(alarm)}")
    if facts["ill"]:
        names = [f"{alarm.get('name', '')} ({words(alarm_of(alarm))})" for alarm in facts["ill"]]
        lines.append(f"not well now: {few(names, 5)}")
    if facts["state"] in _ENDED:
        lines.append(f"{_ENDED[facts['state']]}resume it with: {RunFolder(facts['run']).again}")
    return "\n".join(lines)


def _rank_line(rank: dict[str, Any]) -> str:
    """A rank in words.

    >>> _rank_line({"rank": 1, "host": "n7", "state": "processing", "members": [3, 4, 5], "step": 1200, "rate": 31.4,
    ...             "heartbeat": 2.0, "waits": 0.0, "bytes_sent": 2048, "bytes_received": 0, "cores": 8})
    'rank 1 on n7 (8 cores): processing, members 3–5, step 1,200, 31 member-steps/s, heard from 2 s ago, 2.0 KiB sent, 0 B received'
    >>> _rank_line({"rank": 0, "host": "n7", "state": "processing", "members": [], "heartbeat": 2.0, "waits": 12.0,
    ...             "bytes_sent": 0, "bytes_received": 0})
    'rank 0 on n7: processing, heard from 2 s ago, has been waiting for others for 12 s, 0 B sent, 0 B received'
    """
    words = [rank["state"]]
    if own := rank["members"]:
        in_a_row = own == list(range(own[0], own[-1] + 1))
        which = f"{own[0]}–{own[-1]}" if in_a_row and len(own) > 1 else ", ".join(map(str, own))
        words += [f"member{'s' * (len(own) > 1)} {which}", f"step {rank['step']:,}"]
        words += [f"{rank['rate']:,.0f} member-steps/s"]
    words += [f"heard from {duration(rank['heartbeat'])} ago"]
    words += [f"has been waiting for others for {duration(rank['waits'])}"] if rank["waits"] > 1 else []
    words += [f"{size(rank['bytes_sent'])} sent", f"{size(rank['bytes_received'])} received"]
    cores, memory = rank.get("cores"), rank.get("memory")
    has = [f"{cores} core{'s' * (cores != 1)}"] if cores else []
    has += [size(memory)] if memory else []
    has += [rank["gpus"]] if rank.get("gpus") else []
    where = f"{rank['host']} ({', '.join(has)})" if has else rank["host"]
    return f"rank {rank['rank']} on {where}: {', '.join(words)}"


def _late(rank: dict[str, Any]) -> str:
    return f"rank {rank['rank']} on {rank['host']}, which is late by a factor of {rank['slower']:.1f}"


def _traffic(ranks: list[dict[str, Any]]) -> list[str]:
    """What members cost on the way, in words, of the rank to which most came; nothing where none travelled.

    >>> _traffic([{"rank": 0, "exchanges": 10, "received": 81920, "gathered": 122880}])
    ['10 exchanges: 8.0 KiB came to a rank each time; an all-gather would have brought 12.0 KiB']
    """
    met = [rank for rank in ranks if rank.get("exchanges") and rank.get("received")]
    if not met:
        return []
    most = max(met, key=lambda rank: float(rank["received"] / rank["exchanges"]))
    times = most["exchanges"]
    came, all_of_them = (size(most[key] / times) for key in ("received", "gathered"))
    each = f"{times:,} exchange{'s' * (times != 1)}: {came} came to a rank each time"
    return [f"{each}; an all-gather would have brought {all_of_them}"]


def _told(alarm: dict[str, Any]) -> str:
    """An event of a member's health in words.

    >>> _told({"event": "calm", "what": "dead_critic"}), _told({"event": "repair", "policy": "reseed"})
    ('dead critic is over', 'repair (reseed)')
    """
    what = words(alarm_of(alarm))
    if alarm["event"] == "calm":
        return f"{what} is over"
    return f"{what} ({alarm['policy']})" if alarm["event"] == "repair" and alarm.get("policy") else what


def _state(folder: RunFolder, said: str, metrics: list[dict[str, Any]]) -> str:
    """What is to be made of the state that run.json has: its process may be gone, and had no time to say so."""
    if said not in ("running", "restarting"):
        return said
    now, locked = time.time(), is_locked(folder.path / ".lock")
    if said == "restarting":
        return said if locked or now - folder.info_path.stat().st_mtime < _RESTART else "interrupted"
    if locked is None:
        return said if _is_heard(folder, metrics, now) else "unknown"
    return said if locked else "killed"


def _is_heard(folder: RunFolder, metrics: list[dict[str, Any]], now: float) -> bool:
    """Whether any rank gave a sign of life, or a record was written, as lately as they usually are."""
    if any(
        beat.state != "finished" and beat.health(now) not in _MISSED for beat in heartbeat.read(folder.path / "ranks")
    ):
        return True
    told = [float(line.get("seconds", 0.0)) for line in metrics[-2:]]
    usual = max(_QUIET, 3 * (told[-1] - told[0])) if told else _QUIET
    written = [
        path.stat().st_mtime for path in (folder.metrics_path, folder.events_path, folder.info_path) if path.exists()
    ]
    return now - max(written, default=0.0) <= usual
