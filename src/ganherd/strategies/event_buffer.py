"""Buffer events of this rank's members while ranks do not synchronise, and combine them for all members afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event


@dataclass(frozen=True)
class _BufferedEvent:
    """The arguments of one `EventBuffer.add`."""

    step: int
    name: str
    facts: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    per_rank: Mapping[str, float]
    labels: Mapping[str, Sequence[str]]


class EventBuffer:
    """Collect events until all ranks can exchange them. All ranks add the same events, in the same order.

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
            columns: A bool, int or float for each of this rank's members [n].
            per_rank: A number for this rank.
            labels: For a column of indices, the names of the indices.
        """
        self._events.append(_BufferedEvent(step, name, facts, columns, per_rank or {}, labels or {}))

    def flush(self, step: int) -> Iterator[Event]:
        """Yield the buffered events with the values of all members and ranks, after one exchange.

        All ranks call this together, at this step. Events of an earlier step carry that `step`.
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
