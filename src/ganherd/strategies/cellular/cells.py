"""Where cells live: the members of a rank's cells, and the rows of a snapshot that each of them meets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ganherd.comm.communicator import Placement
from ganherd.strategies.cellular.topology import Topology, replicated, with_population


@dataclass(frozen=True)
class Cells:
    """The cells of one rank, whole: a cell's p individuals are p members in a row, and live together."""

    own: np.ndarray  # int64 [n] the rank's members, by their number in the whole herd
    population: int
    seed: np.ndarray  # int64 [C]
    cell: np.ndarray  # int64 [C] its number within its replica

    @staticmethod
    def of(own: tuple[int, ...], population: int, seed: np.ndarray, slot: np.ndarray) -> Cells:
        first = np.arange(0, len(own), population)
        whole = len(own) % population == 0 and bool((slot[first] % population == 0).all())
        assert whole, "a cell must not be cut between ranks"
        return Cells(np.array(own, np.int64), population, seed[first], slot[first] // population)

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def first(self) -> np.ndarray:
        """int64 [C]: the row of each cell's first member on this rank."""
        return np.arange(len(self)) * self.population


@dataclass(frozen=True)
class Wiring:
    """A topology as one rank sees it: which members it has to know, and where they lie among those."""

    topology: Topology  # of the cells of one replica
    wanted: tuple[tuple[int, ...], ...]  # of each rank, ascending: all members that its cells meet, its own included
    table: np.ndarray  # int64 [C, S] rows of `wanted`: the sub-population of each cell, its own individuals first
    real: np.ndarray  # bool [C, S]: not filling
    members: np.ndarray  # int64 [n, S] rows of `wanted`: the same for each member, itself first
    own: np.ndarray  # int64 [n] rows of `wanted`: the rank's members themselves
    near: np.ndarray  # int64 [C, s] columns of `cells` of this rank: the cells of each neighbourhood, its own first
    cells: tuple[tuple[int, ...], ...]  # of each rank, ascending: all cells that its own meet, in all replicas


def wire(topology: Topology, population: int, replicas: int, placement: Placement, rank: int) -> Wiring:
    everyone = replicated(with_population(topology, population), replicas)  # [N, S]
    wanted = tuple(tuple(np.unique(everyone.table[list(own)]).tolist()) for own in placement.ranks)
    own = np.array(placement.ranks[rank], np.int64)
    first = own[::population]
    known = np.array(wanted[rank], np.int64)
    cells = tuple(tuple(sorted({member // population for member in each})) for each in wanted)

    def rows(members: np.ndarray) -> np.ndarray:
        return np.searchsorted(known, members)

    return Wiring(
        topology,
        wanted,
        rows(everyone.table[first]),
        everyone.mask[first],
        rows(everyone.table[own]),
        rows(own),
        np.searchsorted(np.array(cells[rank], np.int64), replicated(topology, replicas).table[first // population]),
        cells,
    )


def in_front(table: np.ndarray, able: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(table [n, S] with those that are able right after the first column, which stays; how many that makes [n]).

    >>> table, count = in_front(np.array([[7, 8, 9]]), np.array([[False, False, True]]))
    >>> table.tolist(), count.tolist()
    ([[7, 9, 8]], [2])
    """
    able = able.copy()
    able[:, 0] = True
    order = np.argsort(~able, 1, kind="stable")
    return np.take_along_axis(table, order, 1), able.sum(1)
