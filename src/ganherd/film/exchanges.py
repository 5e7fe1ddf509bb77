"""Follow nets through a herd: which discriminator each member has, and from which cell its generator descends, at some steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ganherd.runs.models import JsonLine


@dataclass(frozen=True)
class Exchange:
    """What members have exchanged up to a step."""

    partner: tuple[int, ...]  # the member whose discriminator each one has
    founder: tuple[int, ...]  # the member from whose first generator each generator descends
    pairs: tuple[tuple[int, int], ...]  # of the last swap since the step before
    moves: tuple[tuple[int, int], ...]  # (from, to) of generators since the step before


def exchanges_at(steps: Sequence[int], events: Iterable[JsonLine], members: int) -> Iterator[Exchange]:
    """Yield the state of all exchanges at each of some rising steps. Events that do not fit the herd are ignored."""
    partner, founder, pairs = list(range(members)), list(range(members)), list[tuple[int, int]]()
    moves: list[tuple[int, int]] = []
    winners = list(range(members))  # the member whose generator each cell trains
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
    """Return the member whose generator each cell has after a replacement."""
    origins = _numbers(event.get("g_from"), members) or list(range(members))
    is_new = event.get("g_new")
    if winners is None:
        return origins
    if not isinstance(is_new, list) or len(is_new) != members:
        is_new = [True] * members
    return [winners[origin] if new else origin for origin, new in zip(origins, is_new, strict=True)]


def _numbers(value: Any, members: int) -> list[int] | None:
    """Return a list with a member for each member; None if it is none."""
    if not isinstance(value, list) or len(value) != members:
        return None
    return value if all(type(number) is int and 0 <= number < members for number in value) else None


def _pairs(value: Any, members: int) -> list[tuple[int, int]]:
    pairs = value if isinstance(value, list) else []
    return [
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, list)
        and len(pair) == 2
        and all(type(number) is int and 0 <= number < members for number in pair)
    ]
