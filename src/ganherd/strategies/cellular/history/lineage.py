"""Reconstruct from a run's events which cell the nets of each cell descend from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Events = Sequence[Mapping[str, Any]]
DRAWN = "drawn_"  # prefix of a loss's name in events: how often it was drawn in an iteration


@dataclass(frozen=True)
class Lineage:
    """The ancestry of the best net of each of C cells over T iterations, for one kind of net in one replica."""

    iterations: np.ndarray  # int64 [T], the numbers of the iterations
    founder: np.ndarray  # int64 [T, C]: the cell in which the net's ancestor began the run
    # int64 [T, C]: the cell that the net was copied from at the beginning of the iteration, or its own cell
    source: np.ndarray
    fitness: np.ndarray  # float64 [T, C], after the iteration; NaN if the recorded value is not finite
    replaced: np.ndarray  # bool [T, C]: the net was trained in this iteration and replaced an old one


def lineage(events: Events, kind: str, cells: int, population: int = 1, replica: int = 0) -> Lineage:
    """Return which cell the best net of each cell descends from, after every iteration of a run.

    Without selection nets never move between cells, so each cell descends from itself.

    Args:
        events: The lines of the run's events.jsonl.
        kind: g for generators, d for discriminators.
        cells: The number of cells.
        population: The number of members in a cell.
        replica: The number of the replica (independent copy of the grid).

    >>> events = [{"event": "tournament", "iteration": 0, "g": [1, 1]},
    ...           {"event": "replacement", "iteration": 0, "g_new": [True, False], "g_after": [0.5, 0.7]}]
    >>> result = lineage(events, "g", 2)
    >>> result.founder.tolist(), result.source.tolist(), result.replaced.tolist()
    ([[1, 1]], [[1, 1]], [[True, False]])
    """
    n = cells * population
    members = slice(replica * n, (replica + 1) * n)
    founder = np.arange(n) // population  # the founding cell of every individual
    won = np.arange(n)
    rows: dict[str, list[Any]] = {name: [] for name in ("iterations", "founder", "source", "fitness", "replaced")}
    for event in events:
        name = event.get("event")
        if name == "tournament":
            won = np.array(event[kind][members], np.int64) - members.start
        elif name in ("replacement", "evaluation"):
            new = np.array(event.get(f"{kind}_new", [True] * members.stop)[members], bool)
            place = np.array(event.get(f"{kind}_from", range(members.stop))[members], np.int64) - members.start
            trained = won if name == "replacement" else np.arange(n)
            source = np.where(new, trained[place], place)  # the individual of the iteration's beginning that each is
            founder = founder[source]
            rows["iterations"].append(int(event["iteration"]))
            rows["founder"].append(founder[::population])
            rows["source"].append(source[::population] // population)
            rows["fitness"].append([_number(value) for value in event[f"{kind}_after"][members]][::population])
            rows["replaced"].append(new[::population])
            won = np.arange(n)
    types = {"fitness": np.float64, "replaced": bool}
    arrays = {name: np.array(values, types.get(name, np.int64)) for name, values in rows.items()}
    return Lineage(**{name: v if name == "iterations" else v.reshape(-1, cells) for name, v in arrays.items()})


def of_records(lines: Events, name: str, cells: int, population: int = 1, replica: int = 0) -> list[list[Any]]:
    """Return the values of a column for the first (best) individual of every cell.

    Args:
        lines: The lines of a file of records, such as metrics.jsonl.
        name: The name of the column, which holds a value for each member.
        cells: The number of cells.
        population: The number of members in a cell.
        replica: The number of the replica (independent copy of the grid).

    Returns:
        A list with an entry for each line that has the column: the values of the C cells.
    """
    first = replica * cells * population
    return [line[name][first : first + cells * population : population] for line in lines if line.get(name)]


def drawn_losses(events: Events, cells: int, population: int = 1, replica: int = 0) -> dict[str, np.ndarray]:
    """Return how often the generators of every cell drew each loss in each iteration.

    This is for runs that draw a loss at every batch. The result maps the name of a loss to counts, int64 [T, C], for T
    iterations and C cells of one replica.

    >>> drawn_losses([{"event": "evaluation", "iteration": 0, "drawn_hinge": [3, 1], "drawn_minimax": [7, 9]}], 2)
    {'hinge': array([[3, 1]]), 'minimax': array([[7, 9]])}
    """
    named = dict.fromkeys(name for event in events for name in event if name.startswith(DRAWN))
    n, first = cells * population, replica * cells * population
    columns = {name: [event[name][first : first + n] for event in events if event.get(name)] for name in named}
    return {
        name.removeprefix(DRAWN): np.array(rows, np.int64).reshape(-1, cells, population).sum(2)
        for name, rows in columns.items()
    }


def _number(value: Any) -> float:
    """Return a recorded number as a float; NaN if it is null or not finite. Records write nan and inf as text."""
    number = float(value) if value is not None else np.nan
    return number if np.isfinite(number) else np.nan
