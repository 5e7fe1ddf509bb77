"""Which members live on which rank: blocks of equal work, and on a torus rectangles with a short border."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate

from ganherd.comm.communicator import Placement

Rectangle = tuple[int, int, int, int]  # first row, first column, rows, columns
Cut = tuple[tuple[int, int], ...]  # of each band: its height, and into how many rectangles it is cut


def place(
    members: int,
    ranks: int,
    *,
    replicas: int = 1,
    grid: tuple[int, int] | None = None,
    together: int = 1,
    weights: Sequence[float] | None = None,
) -> Placement:
    """The members of all replicas over the ranks; what has more ranks than can be used leaves the last ones empty: spares.

    `members`: of one replica. `grid`: the rows and columns of cells that a replica lies on, where neighbours on it meet; the
    cells of a rank are a rectangle, where rectangles can be as even as blocks in the order of the members.
    `together`: so many members in a row are never parted, as those of one cell. `weights`: how fast each rank is; unlike
    ranks get blocks in order.

    >>> place(4, 2, grid=(2, 2)).ranks, place(3, 2, replicas=2).ranks, place(2, 3).ranks
    (((0, 1), (2, 3)), ((0, 1, 2), (3, 4, 5)), ((0,), (1,), ()))
    """
    if members % together:
        raise ValueError(f"{members} members are not whole groups of {together}")
    cells = members // together
    if grid is None or weights is not None:
        counts = shares(cells * replicas, [1.0] * ranks if weights is None else weights)
        each: Sequence[Iterable[int]] = _in_order(counts)
    else:
        if grid[0] * grid[1] != cells:
            raise ValueError(f"{cells} cells do not lie on a grid of {grid[0]} × {grid[1]}")
        each = _on_grids(*grid, ranks, replicas)
    return Placement(tuple(tuple(cell * together + j for cell in sorted(own) for j in range(together)) for own in each))


def shares(items: int, weights: Sequence[float]) -> list[int]:
    """How many of the items each rank gets so that the slowest is done as early as can be; items take equally long.

    >>> shares(10, [1, 1, 1]), shares(10, [3.0, 1.0]), shares(2, [1, 1, 1])
    ([4, 3, 3], [8, 2], [1, 1, 0])
    """
    if not weights or min(weights) < 0 or max(weights) <= 0:
        raise ValueError(f"weights must be numbers of at least 0, and not all 0: {list(weights)}")
    total = math.fsum(weights)
    counts = [int(max(0.0, items * weight / total - 1e-9)) for weight in weights]  # in the best shares nobody has less
    while sum(counts) < items:  # one more for whom would be done with it first
        counts[min((r for r, w in enumerate(weights) if w > 0), key=lambda r: (counts[r] + 1) / weights[r])] += 1
    return counts


def torus_blocks(rows: int, columns: int, ranks: int) -> list[Rectangle]:
    """A torus cut into one rectangle for each rank: the largest as small as can be, then all borders as short as can be.

    The torus is cut into bands, and each band across into rectangles of nearly one width; bands run along the rows or
    along the columns, whichever is better. With more ranks than cells there are as many rectangles as cells.

    >>> torus_blocks(6, 6, 4)
    [(0, 0, 3, 3), (0, 3, 3, 3), (3, 0, 3, 3), (3, 3, 3, 3)]
    >>> torus_blocks(3, 3, 2)
    [(0, 0, 2, 3), (2, 0, 1, 3)]
    """
    ranks = min(ranks, rows * columns)
    along, across = _bands(rows, columns, ranks), _bands(columns, rows, ranks)
    if across[:2] < along[:2]:
        return sorted((top, left, height, width) for left, top, width, height in _cut(columns, rows, across[2]))
    return _cut(rows, columns, along[2])


def border(rows: int, columns: int, height: int, width: int) -> int:
    """How many other cells those of a rectangle on the torus meet to the West, North, East and South: each is fetched once.

    >>> border(4, 4, 2, 2), border(4, 4, 1, 4), border(3, 3, 2, 2)
    (8, 8, 4)
    """
    sides = 0 if width == columns else height * min(2, columns - width)
    return sides + (0 if height == rows else width * min(2, rows - height))


def _bands(rows: int, columns: int, ranks: int) -> tuple[int, int, Cut]:
    """The best bands along the rows: cells of the largest rectangle, all borders together, and how they are cut."""
    most = -(-rows * columns // ranks)
    while (found := _shortest(rows, columns, ranks, most)) is None:
        most += 1
    return most, *found


def _shortest(rows: int, columns: int, ranks: int, most: int) -> tuple[int, Cut] | None:
    """Bands of rectangles that have at most so many cells, with the shortest borders; None: there are none."""
    fewest = [0]  # rectangles that so many rows need
    least = {h: -(-columns // (most // h)) for h in range(1, min(rows, most) + 1)}  # by the height of a band
    for left in range(1, rows + 1):
        fewest.append(min(fewest[left - h] + n for h, n in least.items() if h <= left))

    @cache
    def length(height: int, count: int) -> int:
        return sum(border(rows, columns, height, width) for width in shares(columns, [1.0] * count))

    @cache
    def best(left: int, count: int) -> tuple[int, Cut] | None:
        if left == 0:
            return (0, ())
        found: list[tuple[int, Cut]] = []
        for height in range(
            1, min(left, most) + 1
        ):  # of equal ones that with low bands: a whole row meets two peers only
            rest = left - height
            low, high = max(least[height], count - rest * columns), min(columns, count - fewest[rest])
            for number in range(low, high + 1):
                if (after := best(rest, count - number)) is not None:
                    found.append((length(height, number) + after[0], ((height, number), *after[1])))
        return min(found, key=lambda each: each[0], default=None)

    return best(rows, ranks) if fewest[rows] <= ranks else None


def _cut(rows: int, columns: int, cut: Cut) -> list[Rectangle]:
    """The rectangles, band by band."""
    out, top = [], 0
    for height, count in sorted(cut, reverse=True):
        left = 0
        for width in shares(columns, [1.0] * count):
            out.append((top, left, height, width))
            left += width
        top += height
    return out


def _on_grids(rows: int, columns: int, ranks: int, replicas: int) -> list[Iterable[int]]:
    """The cells of each rank: replicas in as many groups as can be, so that few ranks share one, and none with another group.

    >>> [list(own) for own in _on_grids(1, 2, 4, 2)], [list(own) for own in _on_grids(1, 2, 2, 4)]
    ([[0], [1], [2], [3]], [[0, 1, 2, 3], [4, 5, 6, 7]])
    """
    groups, cells = math.gcd(ranks, replicas), rows * columns
    blocks = [_cells(rectangle, columns) for rectangle in torus_blocks(rows, columns, ranks // groups)]
    in_order = _in_order(shares(cells, [1.0] * len(blocks)))
    if max(map(len, blocks)) > len(in_order[0]):  # rectangles are not worth a slower step
        blocks = in_order
    used: list[Iterable[int]] = []
    for group in range(groups):
        of_group = range(group * replicas // groups, (group + 1) * replicas // groups)
        used += [[r * cells + cell for r in of_group for cell in block] for block in blocks]
    return [*used, *([] for _ in range(ranks - len(used)))]  # spares come last


def _in_order(counts: Sequence[int]) -> list[list[int]]:
    """The first so many, the next so many, …"""
    ends = list(accumulate(counts))
    return [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]


def _cells(block: Rectangle, columns: int) -> list[int]:
    top, left, height, width = block
    return [row * columns + column for row in range(top, top + height) for column in range(left, left + width)]
