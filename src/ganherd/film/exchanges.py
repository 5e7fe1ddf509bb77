"""Follow nets through a herd: compute from events which discriminator each member has and where its generator is from.

In GAP, members swap discriminators in pairs. On a grid (cellular training), a cell may take over the generator of a
neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ganherd.runs.models import JsonLine


@dataclass(frozen=True)
class Exchange:
    """What members have exchanged up to a saved step."""

    partner: tuple[int, ...]  # of each member: the member that began with the discriminator which it has now
    founder: tuple[int, ...]  # of each member: the member from whose initial generator its generator descends
    pairs: tuple[tuple[int, int], ...]  # members that swapped, in the last swap after the previous saved step
    moves: tuple[tuple[int, int], ...]  # (from, to) of generators that moved after the previous saved step


def exchanges_at(steps: Sequence[int], events: Iterable[JsonLine], members: int) -> Iterator[Exchange]:
    """Yield what has been exchanged up to each of `steps`.

    Args:
        steps: Saved steps in ascending order.
        events: The lines of events.jsonl in order. Those that do not fit the number of members are ignored.
        members: The number of members.
    """
    partner, founder, pairs = list(range(members)), list(range(members)), list[tuple[int, int]]()
    moves: list[tuple[int, int]] = []
    winners = list(range(members))  # of each cell: the member whose generator won the tournament and is trained there
    left = iter(events)
    event = next(left, None)
    for step in steps:
        while event is not None and event.step <= step:
            kind = event.get("event")
            if kind == "swap":
                pairs = _pairs(event.get("pairs"), members)
                owners = founder if event.get("what") == "generators" else partner
                for a, b in pairs:
                    owners[a], owners[b] = owners[b], owners[a]
            elif kind == "tournament":
                winners = _numbers(event.get("g"), members) or winners
            elif kind in ("replacement", "evaluation"):
                origins = _origins(event, winners if kind == "replacement" else None, members)
                moves += [(origin, cell) for cell, origin in enumerate(origins) if origin != cell]
                founder = [founder[origin] for origin in origins]
                winners = list(range(members))
            event = next(left, None)
        yield Exchange(tuple(partner), tuple(founder), tuple(pairs), tuple(moves))
        moves, pairs = [], []


def _origins(event: JsonLine, winners: Sequence[int] | None, members: int) -> list[int]:
    """Return for each cell the member whose generator it has after a replacement or evaluation event.

    Args:
        winners: For each cell the member whose generator it trained since the last tournament; None: its own.
    """
    origins = _numbers(event.get("g_from"), members) or list(range(members))
    is_new = event.get("g_new")
    if winners is None:
        return origins
    if not isinstance(is_new, list) or len(is_new) != members:
        is_new = [True] * members
    return [winners[origin] if new else origin for origin, new in zip(origins, is_new, strict=True)]


def _numbers(value: Any, members: int) -> list[int] | None:
    """Return the value of an event if it is a list that has a valid member number for each member; None otherwise."""
    if not isinstance(value, list) or len(value) != members:
        return None
    return value if all(type(number) is int and 0 <= number < members for number in value) else None


def _pairs(value: Any, members: int) -> list[tuple[int, int]]:
    """Return the valid pairs of members in the value of an event."""
    pairs = value if isinstance(value, list) else []
    return [
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, list)
        and len(pair) == 2
        and all(type(number) is int and 0 <= number < members for number in pair)
    ]
