"""Events of this rank's members, noted while ranks are apart and told of all members when they are together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ganherd.comm.communicator import Communicator, Placement
from ganherd.strategies.strategy import Event


@dataclass(frozen=True)
class _Noted:
    step: int
    event: str
    facts: Mapping[str, Any]  # the same on all ranks
    columns: Mapping[str, np.ndarray]  # [n] of this rank's members
    of_rank: Mapping[str, float]
    words: Mapping[str, Sequence[str]]


class EventBuffer:
    """All ranks note the same events in the same order, each with the numbers of its own members.

    >>> from ganherd.comm.backends.local import Local
    >>> untold = Untold(Local(), Placement(((0, 1),)))
    >>> untold.note(30, "tournament", {"iteration": 3}, {"g": np.array([1, 1])}, {"late": 0.5})
    >>> list(untold.tell(30)), list(untold.tell(30))
    ([('tournament', {'iteration': 3, 'g': [1, 1], 'late': [0.5]})], [])
    """

    def __init__(self, comm: Communicator, placement: Placement) -> None:
        self._comm, self._placement = comm, placement
        self._noted: list[_Noted] = []

    def note(
        self,
        step: int,
        event: str,
        facts: Mapping[str, Any],
        columns: Mapping[str, np.ndarray],
        of_rank: Mapping[str, float] | None = None,
        words: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`columns`: bool, int or float of each of the rank's members; `of_rank`: a number for the rank itself; `words`: what
        the numbers of a column stand for."""
        self._noted.append(_Noted(step, event, facts, columns, of_rank or {}, words or {}))

    def tell(self, step: int) -> Iterator[Event]:
        """All that was noted, of all members (and ranks), as one exchange; called by all ranks together, at that step."""
        noted, self._noted = self._noted, []
        if not noted:
            return
        n = len(self._placement.ranks[self._comm.rank])
        each_rank = [{name: np.full(n, value) for name, value in each.of_rank.items()} for each in noted]
        own = [
            column
            for each, ranks in zip(noted, each_rank, strict=True)
            for column in (*each.columns.values(), *ranks.values())
        ]
        everyones = iter(self._comm.gather(np.stack(own, 1).astype(np.float64), self._placement).T)
        firsts = [members[0] for members in self._placement.ranks]
        for each, ranks in zip(noted, each_rank, strict=True):
            found = {name: next(everyones).astype(column.dtype).tolist() for name, column in each.columns.items()}
            found |= {name: [words[i] for i in found[name]] for name, words in each.words.items() if name in found}
            found |= {name: next(everyones)[firsts].astype(column.dtype).tolist() for name, column in ranks.items()}
            at = {} if each.step == step else {"step": each.step}
            yield each.event, {**at, **each.facts, **found}
