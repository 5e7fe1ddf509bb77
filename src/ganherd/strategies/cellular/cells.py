"""Index tables of a rank's cells: their members, and the rows of a snapshot that each of them meets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ganherd.comm.communicator import Placement
from ganherd.strategies.cellular.topology import Topology, replicated, with_population


@dataclass(frozen=True)
class Cells:
    """The cells of one rank. The p individuals of a cell are p consecutive members, on the same rank."""

    own: np.ndarray  # int64 [n] the rank's members, numbered over the whole herd
    population: int
    seed: np.ndarray  # int64 [C]
    cell: np.ndarray  # int64 [C] the number of the cell within its replica

    @staticmethod
    def of(own: tuple[int, ...], population: int, seed: np.ndarray, slot: np.ndarray) -> Cells:
        """Return the cells of these members, from the seed [n] and the slot [n] of each."""
        first = np.arange(0, len(own), population)
        whole = len(own) % population == 0 and bool((slot[first] % population == 0).all())
        assert whole, "the individuals of a cell must be on one rank"
        return Cells(np.array(own, np.int64), population, seed[first], slot[first] // population)

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def first(self) -> np.ndarray:
        """Return the row of each cell's first member on this rank, int64 [C]."""
        return np.arange(len(self)) * self.population


@dataclass(frozen=True)
class Wiring:
    """The topology for one rank: which members it needs, and their rows in a snapshot of these."""

    topology: Topology  # of the cells of one replica
    wanted: tuple[tuple[int, ...], ...]  # for each rank all members that its cells meet, its own included, ascending
    table: np.ndarray  # int64 [C, S] rows of `wanted`: the sub-population of each cell, its own individuals first
    real: np.ndarray  # bool [C, S]: False for padding
    members: np.ndarray  # int64 [n, S] rows of `wanted`: the same for each member, itself first
    near: np.ndarray  # int64 [C, s] positions in this rank's `cells`: the cells of each neighbourhood, the centre first
    cells: tuple[tuple[int, ...], ...]  # for each rank all cells that its own meet, in all replicas, ascending


def wire(topology: Topology, population: int, replicas: int, placement: Placement, rank: int) -> Wiring:
    """Return the index tables of one rank for a topology.

    Args:
        topology: The neighbourhoods of the cells of one replica.
        population: The number of individuals in a cell.
        replicas: The number of replicas.
        placement: The rank of each member.
        rank: The rank whose tables are returned.
    """
    all_members = replicated(with_population(topology, population), replicas)  # [N, S]
    wanted = tuple(tuple(np.unique(all_members.table[list(own)]).tolist()) for own in placement.ranks)
    own = np.array(placement.ranks[rank], np.int64)
    first = own[::population]
    known = np.array(wanted[rank], np.int64)
    cells = tuple(tuple(sorted({member // population for member in each})) for each in wanted)

    def rows(members: np.ndarray) -> np.ndarray:
        return np.searchsorted(known, members)

    return Wiring(
        topology,
        wanted,
        rows(all_members.table[first]),
        all_members.mask[first],
        rows(all_members.table[own]),
        np.searchsorted(np.array(cells[rank], np.int64), replicated(topology, replicas).table[first // population]),
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
