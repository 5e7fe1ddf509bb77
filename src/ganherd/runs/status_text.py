"""Format the state and progress of a run as the text that `ganherd status` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ganherd.comm.backends.detect import RANKS, with_launcher
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.models import EventRecord
from ganherd.runs.run_status import MISSED, PartsStatus, RankStatus, RunStatus
from ganherd.util.errors import counted, few
from ganherd.util.text import duration, printable_line, size, words

_SHOWN = 10  # the number of alarms that are shown, the last ones
_STATES = {  # explanations of states whose name is not clear
    "restarting": "restarting (a rank was lost, and torchrun starts all of them again)",
    "unknown": "running or killed, which is not known (this file system has no locks)",
}
# States from which a run can be resumed, and what is said before the command that resumes it.
_ENDED = {"killed": "", "interrupted": "", "unknown": "if no process trains it any more, "}
_SLOW = 1.5  # a rank whose time per step is this many times the median of the others is reported as slow


def text(status: RunStatus | PartsStatus) -> str:
    """Return the state and progress of a run as lines of text."""
    if isinstance(status, PartsStatus):
        lines = [f"{status.run}: trained in parts, which are joined when all are finished"]
        left = f"members {', '.join(status.left)}" if status.left else "to join them, by any part's command again"
        return "\n".join([*lines, *(text(part) for part in status.parts), f"left: {left}"])
    left = f", {duration(status.seconds_left)} left" if status.seconds_left is not None else ""
    state = _STATES.get(status.state, status.state)
    rate = f", {status.rate:,.0f} member-steps/s" if status.rate else ""
    record = f", last record {duration(status.heartbeat)} ago" if status.heartbeat is not None else ""
    lines = [
        f"{status.run}: {state}, step {status.step:,} of {status.steps:,}{left}",
        f"{counted(status.members, 'members')} on {status.host} ({status.engine.name}){rate}{record}",
    ]
    lines += [f"reason for ending: {status.reason}"] if status.reason and status.state != "running" else []
    lines += _rank_lines(status.ranks) if status.state == "running" else []
    lines += _traffic(status.ranks)
    lines += [staleness_in_words(status.staleness)] if status.staleness else []
    if status.profile:
        whole = sum(status.profile.values()) or 1.0
        each = sorted(status.profile.items(), key=lambda item: -item[1])
        lines.append(f"of its time: {', '.join(f'{name} {s:.1f} s ({s / whole:.0%})' for name, s in each)}")
    if (earlier := status.alarms_before + len(status.alarms) - _SHOWN) > 0:
        lines.append(f"… {earlier:,} before these in events.jsonl")
    lines += [f"step {alarm.step:,}: {alarm.name} {_in_words(alarm)}" for alarm in status.alarms[-_SHOWN:]]
    if status.verdict is not None:  # the verdict on the final mixture matters more than alarms during the training
        lines.append(f"verdict: {status.verdict.sentence}")
    elif status.active_alarms:
        names = [f"{alarm.name} ({words(alarm.alarm)})" for alarm in status.active_alarms]
        lines.append(f"not well now: {few(names, 5)}")
    if status.state in _ENDED:
        folder = RunFolder(status.run)
        saved = max(saved_steps(folder.checkpoints), default=0)
        if lost := max(0, status.step - saved):
            lines.append(f"saved at step {saved:,}: a resume repeats the {counted(lost, 'steps')} after it")
        lines.append(f"{_ENDED[status.state]}resume it with: {_again(folder)}")
    return "\n".join(map(printable_line, lines))


def _again(folder: RunFolder) -> str:
    """Return the command that resumes a run, with the launcher that starts as many ranks as it had."""
    ranks = folder.info.ranks
    if not ranks:
        return folder.again
    # `--ranks` starts ranks on this machine, whatever started them before
    environ = {RANKS: str(len(ranks.hosts))} if len(set(ranks.hosts)) == 1 else {}
    return with_launcher(folder.again, ranks.communicator, len(ranks.hosts), environ)


def staleness_in_words(ages: Mapping[str, float]) -> str:
    """Return a sentence about how old the nets of neighbours were when ranks took them. `ages`: as `Staleness.facts`.

    >>> staleness_in_words({"iterations": 40, "most": 2, "mean": 1.25})
    "neighbours' nets were up to 2 iterations old when they were taken, 1.2 on average by the rank that was furthest ahead"
    """
    return (
        f"neighbours' nets were up to {counted(int(ages['most']), 'iterations')} old when they were taken, "
        f"{ages['mean']:.1f} on average by the rank that was furthest ahead"
    )


def _rank_lines(ranks: Sequence[RankStatus]) -> list[str]:
    """Return a line for each rank, and lines that name the ranks that are slow or silent."""
    lines = [_rank_line(rank) for rank in ranks]
    names = {rank: f"rank {rank.beat.rank} on {rank.beat.host}" for rank in ranks}
    if missed := [names[rank] for rank in ranks if rank.state in MISSED]:
        lines.append(f"not heard from: {', '.join(missed)}")
    slow = [(names[rank], rank.slower) for rank in ranks if rank.slower is not None and rank.slower >= _SLOW]
    late = [f"{name}, which is late by a factor of {factor:.1f}" for name, factor in slow]
    return lines + ([f"the others wait for: {', '.join(late)}"] if late else [])


def _rank_line(rank: RankStatus) -> str:
    """Return the status of a rank in words.

    >>> from ganherd.comm.heartbeat import Beat
    >>> beat = Beat(1, 2, "processing", "n7", 1, cores=8, members=(3, 4, 5), step=1200, rate=31.4, bytes_sent=2048)
    >>> _rank_line(RankStatus(beat, "processing", 2.0))
    'rank 1 on n7 (8 cores): processing, members 3–5, step 1,200, 31 member-steps/s, heard from 2 s ago, 2.0 KiB sent, 0 B received'
    >>> _rank_line(RankStatus(Beat(0, 1, "processing", "n7", 1, waits=12.0), "processing", 2.0))
    'rank 0 on n7: processing, heard from 2 s ago, has been waiting for others for 12 s, 0 B sent, 0 B received'
    """
    beat, parts = rank.beat, [rank.state]
    if own := beat.members:
        in_a_row = own == tuple(range(own[0], own[-1] + 1))
        which = f"{own[0]}–{own[-1]}" if in_a_row and len(own) > 1 else ", ".join(map(str, own))
        parts += [f"member{'s' * (len(own) > 1)} {which}", f"step {beat.step:,}"]
        parts += [f"{beat.rate:,.0f} member-steps/s"]
    parts += [f"heard from {duration(rank.heartbeat)} ago"]
    parts += [f"has been waiting for others for {duration(beat.waits)}"] if beat.waits > 1 else []
    parts += [f"{size(beat.bytes_sent)} sent", f"{size(beat.bytes_received)} received"]
    has = [counted(beat.cores, "cores")] if beat.cores else []
    has += [size(beat.memory)] if beat.memory else []
    has += [beat.gpus] if beat.gpus else []
    where = f"{beat.host} ({', '.join(has)})" if has else beat.host
    return f"rank {beat.rank} on {where}: {', '.join(parts)}"


def _traffic(ranks: Sequence[RankStatus]) -> list[str]:
    """Return a line about the bytes per exchange of the rank that received most, in a list; empty without exchanges.

    >>> from ganherd.comm.heartbeat import Beat
    >>> _traffic([RankStatus(Beat(0, 1, "processing", "n7", 1, exchanges=10, received=81920, gathered=122880), "processing")])
    ['10 exchanges: 8.0 KiB came to a rank each time; an all-gather would have brought 12.0 KiB']
    """
    met = [rank.beat for rank in ranks if rank.beat.exchanges and rank.beat.received]
    if not met:
        return []
    most = max(met, key=lambda beat: beat.received / beat.exchanges)
    each = f"{counted(most.exchanges, 'exchanges')}: {size(most.received / most.exchanges)} came to a rank each time"
    return [f"{each}; an all-gather would have brought {size(most.gathered / most.exchanges)}"]


def _in_words(event: EventRecord) -> str:
    """Return a phrase for an event about the health of a member.

    >>> _in_words(EventRecord.parse({"step": 3, "event": "calm", "what": "dead_critic"}))
    'dead critic is over'
    >>> _in_words(EventRecord.parse({"step": 3, "event": "repair", "policy": "reseed"}))
    'repair (reseed)'
    """
    what = words(event.alarm)
    if event.kind == "calm":
        return f"{what} is over"
    return f"{what} ({event['policy']})" if event.kind == "repair" and event.get("policy") else what
