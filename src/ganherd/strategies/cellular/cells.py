"""Index tables of a rank's cells: their members, and the rows of a snapshot that each of them meets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ganherd.comm.communicator import Placement
from ganherd.strategies.cellular.topology import Topology, replicated, with_population


@dataclass(frozen=True)
class Cells:
    """The cells of one rank. A cell is some consecutive members of one rank: its individuals, then its further offspring."""

    own: np.ndarray  # int64 [n] the rank's members, numbered over the whole herd
    population: int  # individuals of a cell
    rows: int  # members of a cell: nets that it trains in an iteration, of which the first are its individuals
    seed: np.ndarray  # int64 [C]
    cell: np.ndarray  # int64 [C] the number of the cell within its replica

    @staticmethod
    def of(own: tuple[int, ...], population: int, rows: int, seed: np.ndarray, slot: np.ndarray) -> Cells:
        """Return the cells of these members, from the seed [n] and the slot [n] of each."""
        first = np.arange(0, len(own), rows)
        whole = len(own) % rows == 0 and bool((slot[first] % rows == 0).all())
        assert whole, "the members of a cell must be on one rank"
        return Cells(np.array(own, np.int64), population, rows, seed[first], slot[first] // rows)

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def first(self) -> np.ndarray:
        """Return the row of each cell's first member on this rank, int64 [C]."""
        return np.arange(len(self)) * self.rows


@dataclass(frozen=True)
class Wiring:
    """The topology for one rank: which members it needs, and their rows in a snapshot of these."""

    topology: Topology  # of the cells of one replica
    wanted: tuple[
        tuple[int, ...], ...
    ]  # for each rank all individuals that its cells meet, and its own members, ascending
    table: np.ndarray  # int64 [C, S] rows of `wanted`: the sub-population of each cell, its own individuals first
    real: np.ndarray  # bool [C, S]: False for padding
    # int64 [n, S] rows of `wanted`: the same for each member, itself first; for further offspring an individual of its cell
    members: np.ndarray
    near: np.ndarray  # int64 [C, s] positions in this rank's `cells`: the cells of each neighbourhood, the centre first
    cells: tuple[tuple[int, ...], ...]  # for each rank all cells that its own meet, in all replicas, ascending


def wire(topology: Topology, population: int, rows: int, replicas: int, placement: Placement, rank: int) -> Wiring:
    """Return the index tables of one rank for a topology.

    Args:
        topology: The neighbourhoods of the cells of one replica.
        population: The number of individuals in a cell.
        rows: The number of members in a cell, of which the first are its individuals.
        replicas: The number of replicas.
        placement: The rank of each member.
        rank: The rank whose tables are returned.
    """
    individuals = replicated(with_population(topology, population), replicas)  # [R · C · population, S]
    table = individuals.table // population * rows + individuals.table % population  # the same as members

    def individual(members: np.ndarray) -> np.ndarray:
        """Return the individual whose place in the cell each member takes."""
        return np.asarray(members // rows * population + members % rows % population)

    ranks = [np.array(own, np.int64) for own in placement.ranks]
    wanted = tuple(tuple(np.unique([*own, *table[individual(own)].flat]).tolist()) for own in ranks)
    own, known = ranks[rank], np.array(wanted[rank], np.int64)
    first = individual(own[::rows])
    cells = tuple(tuple(sorted({member // rows for member in each})) for each in wanted)
    return Wiring(
        topology,
        wanted,
        np.searchsorted(known, table[first]),
        individuals.mask[first],
        np.searchsorted(known, table[individual(own)]),
        np.searchsorted(np.array(cells[rank], np.int64), replicated(topology, replicas).table[own[::rows] // rows]),
        cells,
    )


def valid_first(table: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the table [n, S] with valid entries moved to the front, and their number in each row [n].

    The first column stays where it is and always counts as valid.

    >>> table, count = valid_first(np.array([[7, 8, 9]]), np.array([[False, False, True]]))
    >>> table.tolist(), count.tolist()
    ([[7, 9, 8]], [2])
    """
    valid = valid.copy()
    valid[:, 0] = True
    order = np.argsort(~valid, 1, kind="stable")
    return np.take_along_axis(table, order, 1), valid.sum(1)
