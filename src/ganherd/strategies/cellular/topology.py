"""Topologies: the neighbourhood of every cell as a row of one table of cell numbers.

In shapes, N is the number of cells and s the number of cells in the largest neighbourhood. A neighbourhood includes the
cell itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ganherd.util.errors import UserError

FIVE = ((0, -1), (-1, 0), (0, 1), (1, 0))  # (row, column) steps to W, N, E, S
NINE = (*FIVE, (-1, -1), (-1, 1), (1, 1), (1, -1))  # and NW, NE, SE, SW
NAMES = ("torus", "moore", "ring", "isolated", "full", "graph")


@dataclass(frozen=True, eq=False)
class Topology:
    """A table whose row i lists the neighbourhood of cell i: itself first, then its neighbours, each once.

    Rows of smaller neighbourhoods are padded with the cell's own index.

    >>> torus(2, 3).table[0], torus(2, 3).neighbours(0)
    (array([0, 2, 3, 1]), [2, 3, 1])
    """

    name: str
    table: np.ndarray  # int64 [N, s]
    count: np.ndarray  # int64 [N], the number of entries of each row that are not padding
    rows: int = 0  # rows of the grid, on which cells are numbered row by row; 0 if cells are not on a grid
    columns: int = 0  # columns of the grid

    def __post_init__(self) -> None:
        self.table.setflags(write=False)
        self.count.setflags(write=False)

    def __len__(self) -> int:
        return len(self.table)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        same = (self.name, self.rows, self.columns) == (other.name, other.rows, other.columns)
        return same and np.array_equal(self.table, other.table) and np.array_equal(self.count, other.count)

    def __hash__(self) -> int:
        return hash((self.name, self.table.shape, self.table.tobytes()))

    @property
    def widest(self) -> int:
        """Return the number s of cells in the largest neighbourhood, its centre included."""
        return int(self.table.shape[1])

    @property
    def mask(self) -> np.ndarray:
        """Return bool [N, s], False for entries of `table` that are padding."""
        return np.asarray(np.arange(self.widest) < self.count[:, None])

    def members(self, cell: int) -> list[int]:
        """Return the numbers of the cells in a cell's neighbourhood, itself first."""
        return [int(member) for member in self.table[cell, : self.count[cell]]]

    def neighbours(self, cell: int) -> list[int]:
        """Return the numbers of a cell's neighbours, without the cell itself."""
        return self.members(cell)[1:]


def torus(rows: int, columns: int) -> Topology:
    """Return the five-cell (von Neumann) neighbourhoods on a torus: the cell, W, N, E, S.

    >>> torus(3, 3).members(1)
    [1, 0, 7, 2, 4]
    """
    return _on_grid("torus", rows, columns, FIVE)


def moore(rows: int, columns: int) -> Topology:
    """Return the nine-cell (Moore) neighbourhoods on a torus: the five cells and the diagonals.

    >>> moore(4, 4).members(5)
    [5, 4, 1, 6, 9, 0, 2, 10, 8]
    """
    return _on_grid("moore", rows, columns, NINE)


def ring(n: int, k: int = 1) -> Topology:
    """Return the topology of n cells in a circle, each with k neighbours on either side, the nearest first.

    >>> ring(6, 2).members(0)
    [0, 5, 1, 4, 2]
    """
    _refuse_empty("ring", n)
    if k < 1:
        raise UserError(f"a ring needs at least 1 neighbour on each side, not {k}; for none choose isolated.")
    steps = [step for distance in range(1, min(k, n // 2) + 1) for step in (-distance, distance)]
    return from_lists(f"ring {n}, {k} on each side", [[(i + step) % n for step in steps] for i in range(n)])


def isolated(n: int) -> Topology:
    """Return the topology of n cells without neighbours.

    >>> isolated(2).table.tolist()
    [[0], [1]]
    """
    _refuse_empty("isolated", n)
    return from_lists(f"isolated {n}", [[] for _ in range(n)])


def full(n: int) -> Topology:
    """Return the topology of n cells that are all neighbours of each other.

    >>> full(3).table.tolist()
    [[0, 1, 2], [1, 0, 2], [2, 0, 1]]
    """
    _refuse_empty("full", n)
    return from_lists(f"full {n}", [range(n)] * n)


def graph(neighbours: Sequence[Sequence[int]]) -> Topology:
    """Return the topology in which cell i has the neighbours that entry i of `neighbours` lists.

    The cell itself need not be listed. The graph may be directed: cell 0 may list cell 1 without being listed by it.

    Raises:
        UserError: The lists are not lists of cell numbers, or there are none.

    >>> graph([[1, 2], [0], [0]]).table.tolist()
    [[0, 1, 2], [1, 0, 1], [2, 0, 2]]
    """
    n = len(neighbours)
    _refuse_empty("graph", n)
    for cell, listed in enumerate(neighbours):
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise UserError(f"cell {cell} of the graph needs a list of its neighbours, not {listed!r}.")
        for other in listed:
            if isinstance(other, bool) or not isinstance(other, (int, np.integer)) or not 0 <= other < n:
                raise UserError(f"cell {cell} of the graph lists {other!r}: its cells are numbered from 0 to {n - 1}.")
    return from_lists(f"graph {n}", neighbours)


_from_graph = graph  # `build` has an argument of the same name.


def build(name: str, rows: int = 1, columns: int = 1, k: int = 1, graph: Sequence[Sequence[int]] = ()) -> Topology:
    """Return the topology of that name.

    Args:
        name: One of `NAMES`.
        rows: With `columns`, the size of the grid. A topology has rows · columns cells, also if it is no grid.
        columns: The number of columns.
        k: The number of neighbours on each side (ring only).
        graph: The neighbours of each cell (graph only); their number is the number of cells.

    Raises:
        UserError: The name is unknown, or the other arguments do not fit it.

    >>> build("ring", 2, 4, k=1) == ring(8, 1), build("graph", graph=[[1], [0]]).widest
    (True, 2)
    """
    if name not in NAMES:
        raise UserError(f"there is no topology {name!r}: choose {', '.join(NAMES[:-1])} or {NAMES[-1]}.")
    if (name == "graph") != bool(graph):
        wrong = "needs the list of each cell's neighbours" if name == "graph" else "takes no list of neighbours"
        raise UserError(f"the topology {name} {wrong}; only graph takes it.")
    if graph:
        return _from_graph(graph)
    _refuse_no_grid(name, rows, columns)
    builders: dict[str, Callable[[], Topology]] = {
        "torus": lambda: torus(rows, columns),
        "moore": lambda: moore(rows, columns),
        "ring": lambda: ring(rows * columns, k),
        "full": lambda: full(rows * columns),
        "isolated": lambda: replace(isolated(rows * columns), rows=rows, columns=columns),
    }
    return builders[name]()


def from_lists(name: str, neighbours: Sequence[Iterable[int]], rows: int = 0, columns: int = 0) -> Topology:
    """Return the topology in which cell i has the i-th list of neighbours; repeated neighbours are dropped.

    Args:
        name: The name of the topology.
        neighbours: The neighbours of each cell; the cell itself need not be listed.
        rows: The rows of the grid on which cells lie; 0: they lie on no grid.
        columns: The columns of this grid.
    """
    lists = [list(dict.fromkeys((cell, *map(int, others)))) for cell, others in enumerate(neighbours)]
    count = np.array([len(members) for members in lists], np.int64)
    table = np.repeat(np.arange(len(lists), dtype=np.int64)[:, None], count.max(), 1)  # [N, s]
    for cell, members in enumerate(lists):
        table[cell, : len(members)] = members
    return Topology(name, table, count, rows, columns)


def replicated(topology: Topology, seeds: int) -> Topology:
    """Return a topology of `seeds` independent copies (replicas) of N cells; cell c of copy r has the number r·N + c.

    >>> replicated(ring(3), 2).table[4]
    array([4, 3, 5])
    """
    if seeds == 1:
        return topology
    offset = np.arange(seeds, dtype=np.int64)[:, None, None] * len(topology)
    table = (topology.table + offset).reshape(-1, topology.widest)  # [seeds * N, s]
    return Topology(f"{topology.name} × {seeds} seeds", table, np.tile(topology.count, seeds))


def with_population(topology: Topology, p: int) -> Topology:
    """Return a topology of members in place of cells, for cells of p members each, numbered cell·p + j.

    The neighbourhood of a member is all members of the cells in its cell's neighbourhood: itself first, then the other
    members of its cell, then those of the neighbouring cells, cell by cell.

    >>> with_population(ring(3), 2).table[1]
    array([1, 0, 4, 5, 2, 3])
    """
    if p < 1:
        raise UserError(f"a cell needs a population of at least 1, not {p}.")
    if p == 1:
        return topology
    lists = [
        [cell * p + j for cell in topology.members(own) for j in range(p)]
        for own in range(len(topology))
        for _ in range(p)
    ]
    return from_lists(f"{topology.name}, {p} in a cell", lists)


def _on_grid(name: str, rows: int, columns: int, steps: Sequence[tuple[int, int]]) -> Topology:
    """Return the topology of a grid with wrap-around borders, in which the neighbours of a cell are these steps away.

    Args:
        name: The name of the topology, e.g. torus.
        rows: The rows of the grid.
        columns: The columns of the grid.
        steps: Steps (down, right) from a cell to its neighbours.
    """
    _refuse_no_grid(name, rows, columns)
    lists = [
        [(row + down) % rows * columns + (column + right) % columns for down, right in steps]
        for row in range(rows)
        for column in range(columns)
    ]
    return from_lists(f"{name} {rows}×{columns}", lists, rows, columns)


def _refuse_no_grid(name: str, rows: int, columns: int) -> None:
    """Raise a UserError if a grid of this size has no cells."""
    if rows < 1 or columns < 1:
        raise UserError(f"the topology {name} needs at least 1 row and 1 column, not {rows} × {columns}.")


def _refuse_empty(name: str, n: int) -> None:
    """Raise a UserError if n, the number of cells, is less than 1."""
    if n < 1:
        raise UserError(f"the topology {name} needs at least 1 cell, not {n}.")
