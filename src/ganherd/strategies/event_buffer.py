"""Buffer events of this rank's members while ranks do not synchronise, and combine those of all ranks afterwards.

An event is a line of events.jsonl: a name and facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event


@dataclass(frozen=True)
class _BufferedEvent:
    """The arguments of one call of `EventBuffer.add`."""

    step: int
    name: str
    facts: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    per_rank: Mapping[str, float]
    labels: Mapping[str, Sequence[str]]


class EventBuffer:
    """Collect events until all ranks can exchange them. All ranks must add the same events, in the same order.

    >>> from ganherd.comm.backends.local import Local
    >>> from ganherd.comm.communicator import Placement
    >>> events = EventBuffer(MemberRanks(Local(), Placement(((0, 1),)), 2))
    >>> events.add(30, "tournament", {"iteration": 3}, {"g": np.array([1, 1])}, {"late": 0.5})
    >>> list(events.flush(30)), list(events.flush(30))
    ([('tournament', {'iteration': 3, 'g': [1, 1], 'late': [0.5]})], [])
    """

    def __init__(self, ranks: MemberRanks) -> None:
        self._ranks = ranks
        self._events: list[_BufferedEvent] = []

    def add(
        self,
        step: int,
        name: str,
        facts: Mapping[str, Any],
        columns: Mapping[str, np.ndarray],
        per_rank: Mapping[str, float] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Add an event.

        Args:
            step: The step at which it happened.
            name: Its name in events.jsonl.
            facts: Values that are the same on all ranks.
            columns: Arrays [n] by name: a bool, int or float for each of this rank's members.
            per_rank: Numbers of this rank by name; the event lists them for all ranks.
            labels: For each column of indices, the texts that replace the indices 0, 1, … in the event.
        """
        self._events.append(_BufferedEvent(step, name, facts, columns, per_rank or {}, labels or {}))

    def flush(self, step: int) -> Iterator[Event]:
        """Exchange the buffered events of all ranks, and yield each once, with the values of all members and ranks.

        All ranks call this together, at the same step. An event that was added at an earlier step has the fact `step`.
        """
        events, self._events = self._events, []
        if not events:
            return
        n = len(self._ranks.own)
        rank_columns = [{name: np.full(n, value) for name, value in event.per_rank.items()} for event in events]
        local: list[np.ndarray] = []
        for event, by_rank in zip(events, rank_columns, strict=True):
            local += [*event.columns.values(), *by_rank.values()]
        gathered = iter(self._ranks.all_gather(np.stack(local, 1).astype(np.float64)).T)
        firsts = [members[0] for members in self._ranks.placement.ranks]
        for event, by_rank in zip(events, rank_columns, strict=True):
            values = {name: next(gathered).astype(column.dtype).tolist() for name, column in event.columns.items()}
            for name, labels in event.labels.items():
                if name in values:
                    values[name] = [labels[i] for i in values[name]]
            values |= {name: next(gathered)[firsts].astype(column.dtype).tolist() for name, column in by_rank.items()}
            earlier = {} if event.step == step else {"step": event.step}
            yield event.name, {**earlier, **event.facts, **values}
