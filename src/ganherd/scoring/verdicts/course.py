"""Read how the training of each member went from the events of a run: its steps and its alarms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ganherd.runs.models import EventRecord
from ganherd.runs.run_status import active_alarms
from ganherd.scoring.verdicts.judgement import Course

_BEGIN = ("nan", "diverged", "alarm")  # events that begin an alarm


def courses(members: int, steps: int | None, events: Iterable[EventRecord]) -> list[Course]:
    """Return the course of each member of each replica.

    Args:
        members: The number of members of all replicas.
        steps: The step of the mixture.
        events: All events of the run.

    >>> lines = [{"step": 9, "event": "alarm", "what": "collapse", "member": 1}]
    >>> [sorted(course.active) for course in courses(2, 10, map(EventRecord.parse, lines))]
    [[], ['collapse']]
    """
    listed = list(events)
    began, active = defaultdict[int | None, set[str]](set), defaultdict[int | None, set[str]](set)
    for event in listed:
        if event.kind in _BEGIN:
            began[event.member].add(event.alarm)
    for event in active_alarms(listed):
        active[event.member].add(event.alarm)
    return [Course(steps, frozenset(active[m]), frozenset(began[m])) for m in range(members)]
