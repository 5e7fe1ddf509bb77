"""Where the genes of a grid came from: read from a run's events alone, iteration by iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Events = Sequence[Mapping[str, Any]]
DRAWN = "drawn_"  # before a loss's name in events: how often it was drawn in an iteration


@dataclass(frozen=True)
class Lineage:
    """One kind of net of one replica, T iterations of C cells: of each cell the best individual, the first."""

    iterations: np.ndarray  # int64 [T], their numbers
    founder: np.ndarray  # int64 [T, C]: the cell in which its genes began
    source: np.ndarray  # int64 [T, C]: the cell that it was copied from when the iteration began; itself: none moved
    fitness: np.ndarray  # float64 [T, C], after the iteration; NaN: not a number
    replaced: np.ndarray  # bool [T, C]: the one that was trained stayed


def lineage(events: Events, kind: str, cells: int, population: int = 1, replica: int = 0) -> Lineage:
    """Of generators (kind g) or discriminators (d). Without selection nothing ever moves.

    >>> told = [{"event": "tournament", "iteration": 0, "g": [1, 1]},
    ...         {"event": "replacement", "iteration": 0, "g_new": [True, False], "g_after": [0.5, 0.7]}]
    >>> found = lineage(told, "g", 2)
    >>> found.founder.tolist(), found.source.tolist(), found.replaced.tolist()
    ([[1, 1]], [[1, 1]], [[True, False]])
    """
    n = cells * population
    own = slice(replica * n, (replica + 1) * n)
    now = np.arange(n) // population  # the founder's cell of every individual
    won = np.arange(n)
    rows: dict[str, list[Any]] = {name: [] for name in ("iterations", "founder", "source", "fitness", "replaced")}
    for event in events:
        what = event.get("event")
        if what == "tournament":
            won = np.array(event[kind][own], np.int64) - own.start
        elif what in ("replacement", "evaluation"):
            new = np.array(event.get(f"{kind}_new", [True] * own.stop)[own], bool)
            place = np.array(event.get(f"{kind}_from", range(own.stop))[own], np.int64) - own.start
            trained = won if what == "replacement" else np.arange(n)
            came = np.where(new, trained[place], place)  # the individual that each is, as the iteration found them
            now = now[came]
            rows["iterations"].append(int(event["iteration"]))
            rows["founder"].append(now[::population])
            rows["source"].append(came[::population] // population)
            rows["fitness"].append([_number(value) for value in event[f"{kind}_after"][own]][::population])
            rows["replaced"].append(new[::population])
            won = np.arange(n)
    types = {"fitness": np.float64, "replaced": bool}
    made = {name: np.array(values, types.get(name, np.int64)) for name, values in rows.items()}
    return Lineage(**{name: v if name == "iterations" else v.reshape(-1, cells) for name, v in made.items()})


def of_records(lines: Events, name: str, cells: int, population: int = 1, replica: int = 0) -> list[list[Any]]:
    """[records][C] what events or metrics say of the first individual of every cell; those without it are left out."""
    first = replica * cells * population
    return [line[name][first : first + cells * population : population] for line in lines if line.get(name)]


def drawn_losses(events: Events, cells: int, population: int = 1, replica: int = 0) -> dict[str, np.ndarray]:
    """Where losses are drawn for every batch, of each loss how often every cell's generators drew it: int64 [T, C].

    >>> drawn_losses([{"event": "evaluation", "iteration": 0, "drawn_hinge": [3, 1], "drawn_minimax": [7, 9]}], 2)
    {'hinge': array([[3, 1]]), 'minimax': array([[7, 9]])}
    """
    named = dict.fromkeys(name for event in events for name in event if name.startswith(DRAWN))
    n, first = cells * population, replica * cells * population
    found = {name: [event[name][first : first + n] for event in events if event.get(name)] for name in named}
    return {
        name.removeprefix(DRAWN): np.array(rows, np.int64).reshape(-1, cells, population).sum(2)
        for name, rows in found.items()
    }


def _number(value: Any) -> float:
    """Records write `nan` and `inf` as words."""
    found = float(value) if value is not None else np.nan
    return found if np.isfinite(found) else np.nan
