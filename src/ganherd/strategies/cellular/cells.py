"""Index tables of a rank's cells: their members, and the rows of a snapshot that each cell meets.

A cell is a group of consecutive members on one rank. Its first members are its individuals, which compete and survive.
If it trains more nets than that, the remaining members are its further offspring. A snapshot holds copies of the
individuals that a rank's cells meet in one iteration. The sub-population of a cell is all individuals of its
neighbourhood, its own included. In shapes, n is the number of this rank's members, C of its cells, S of individuals in
the largest sub-population, and s of cells in the largest neighbourhood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ganherd.comm.communicator import Placement
from ganherd.strategies.cellular.topology import Topology, replicated, with_population


@dataclass(frozen=True)
class Cells:
    """The cells of one rank. The members of a cell are consecutive: its individuals, then its further offspring."""

    own: np.ndarray  # int64 [n] the rank's members, numbered over the whole herd
    population: int  # number of individuals of a cell
    rows: int  # number of members of a cell, its individuals included: nets of each kind that it trains in an iteration
    seed: np.ndarray  # int64 [C], the random seed of the cell's replica
    cell: np.ndarray  # int64 [C] the number of the cell within its replica

    @staticmethod
    def of(own: tuple[int, ...], population: int, rows: int, seed: np.ndarray, slot: np.ndarray) -> Cells:
        """Return the cells that a rank's members form.

        Args:
            own: The rank's members, numbered over the whole herd.
            population: The number of individuals in a cell.
            rows: The number of members in a cell.
            seed: int64 [n], the seed of each member.
            slot: int64 [n], the position of each member within its replica.
        """
        first = np.arange(0, len(own), rows)
        whole = len(own) % rows == 0 and bool((slot[first] % rows == 0).all())
        assert whole, "the members of a cell must be on one rank"
        return Cells(np.array(own, np.int64), population, rows, seed[first], slot[first] // rows)

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def first(self) -> np.ndarray:
        """Return the row of each cell's first member in this rank's tensors, int64 [C]."""
        return np.arange(len(self)) * self.rows


@dataclass(frozen=True)
class Wiring:
    """A topology as index tables for one rank: the members that the rank needs, and where its snapshot holds them."""

    topology: Topology  # of the cells of one replica
    wanted: tuple[
        tuple[int, ...], ...
    ]  # for each rank the members that its snapshot holds, ascending: its own, and all individuals that its cells meet
    # int64 [C, S], the sub-population of each cell, its own individuals first, as positions in this rank's `wanted`
    table: np.ndarray
    real: np.ndarray  # bool [C, S], False for entries of `table` that are padding
    # int64 [n, S], the same as `table` for each member, which comes first itself; a further offspring is represented by
    # an individual of its cell
    members: np.ndarray
    # int64 [C, s], the cells of each neighbourhood, its centre first, as positions in this rank's `cells`
    near: np.ndarray
    cells: tuple[tuple[int, ...], ...]  # for each rank the numbers of all cells that its own cells meet, ascending


def wire(topology: Topology, population: int, rows: int, replicas: int, placement: Placement, rank: int) -> Wiring:
    """Return the index tables of one rank for a topology.

    A replica is one of several independent copies of the herd; its cells meet no cells of other replicas.

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
        """Return for each member the individual that stands for it in `individuals.table`.

        An individual stands for itself; the further offspring of a cell take its individuals in turn.
        """
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
    """Move the valid entries of each row to the front, and return the table [n, S] and the number of valid entries [n].

    The order is otherwise unchanged. The first column stays where it is and always counts as valid.

    Args:
        table: int64 [n, S].
        valid: bool [n, S].

    >>> table, count = valid_first(np.array([[7, 8, 9]]), np.array([[False, False, True]]))
    >>> table.tolist(), count.tolist()
    ([[7, 9, 8]], [2])
    """
    valid = valid.copy()
    valid[:, 0] = True
    order = np.argsort(~valid, 1, kind="stable")
    return np.take_along_axis(table, order, 1), valid.sum(1)
