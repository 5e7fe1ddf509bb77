"""Place members on ranks: in blocks of equal work, or on a torus of cells in rectangles with short borders.

A cell is a group of members that stay on one rank. Only members at the border of a rectangle are sent to other ranks,
so short borders mean little traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from statistics import median

from ganherd.comm.communicator import Placement

Rectangle = tuple[int, int, int, int]  # first row, first column, rows, columns
Cut = tuple[tuple[int, int], ...]  # the height of each band, and the number of rectangles in it
ALIKE = 1.2  # ranks whose speeds differ by at most this factor get equal shares


def place(
    members: int,
    ranks: int,
    *,
    replicas: int = 1,
    grid: tuple[int, int] | None = None,
    together: int = 1,
    weights: Sequence[float] | None = None,
) -> Placement:
    """Return which rank has which members, for all replicas. If there are too many ranks, the last ones are spares.

    Args:
        members: The number of members in one replica.
        ranks: The number of ranks.
        replicas: The number of replicas. If members only meet within their class, the number of classes of all
            replicas.
        grid: Rows and columns of the torus of cells, if neighbours on it meet. The cells of a rank are then a rectangle,
            unless blocks of consecutive cells balance the work better, or there are at least as many replicas as ranks.
        together: This many consecutive members stay on one rank, e.g. the individuals of a cell.
        weights: The speed of each rank; ranks of different speed get blocks of consecutive cells.

    >>> place(4, 2, grid=(2, 2)).ranks, place(3, 2, replicas=2).ranks, place(2, 3).ranks
    (((0, 1), (2, 3)), ((0, 1, 2), (3, 4, 5)), ((0,), (1,), ()))
    """
    if members % together:
        raise ValueError(f"{members} members are not whole groups of {together}")
    cells = members // together
    if grid is not None and grid[0] * grid[1] != cells:
        raise ValueError(f"{cells} cells do not lie on a grid of {grid[0]} × {grid[1]}")
    if grid is None or weights is not None or replicas >= ranks:  # consecutive blocks divide few replicas among ranks
        counts = shares(cells * replicas, [1.0] * ranks if weights is None else weights)
        cells_by_rank: Sequence[Iterable[int]] = _in_order(counts)
    else:
        cells_by_rank = _on_grids(*grid, ranks, replicas)
    members_by_rank = [[cell * together + j for cell in sorted(own) for j in range(together)] for own in cells_by_rank]
    return Placement(tuple(map(tuple, members_by_rank)))


def weights(rates: Sequence[float | None], kinds: Sequence[str]) -> list[float] | None:
    """Return the speeds of the ranks as weights for `place`; None if all ranks are about equally fast.

    Ranks of one kind have the same host, type of device and share of its cores. They are taken to be equally fast, because
    measured differences between them come from other processes: each gets the median of their rates.

    Args:
        rates: The measured member-steps per second of each rank; None for a spare, whose weight is 0.
        kinds: A text for each rank, equal for ranks of one kind.

    >>> weights([100.0, 104.0, 50.0, None], ["a", "a", "b", "b"])
    [102.0, 102.0, 50.0, 0.0]
    >>> weights([100.0, 60.0, 90.0], ["a", "a", "b"]) is None
    True
    """
    by_kind: dict[str, list[float]] = {}
    for kind, rate in zip(kinds, rates, strict=True):
        if rate is not None:
            by_kind.setdefault(kind, []).append(rate)
    middle = {kind: median(each) for kind, each in by_kind.items()}
    if len(middle) < 2 or min(middle.values()) <= 0 or not all(map(math.isfinite, middle.values())):
        return None
    if max(middle.values()) <= ALIKE * min(middle.values()):
        return None
    return [0.0 if rate is None else middle[kind] for kind, rate in zip(kinds, rates, strict=True)]


def shares(items: int, weights: Sequence[float]) -> list[int]:
    """Return the number of items for each rank, such that the last rank finishes as early as possible.

    All items cost the same. `weights`: the speed of each rank.

    >>> shares(10, [1, 1, 1]), shares(10, [3.0, 1.0]), shares(2, [1, 1, 1])
    ([4, 3, 3], [8, 2], [1, 1, 0])
    """
    if not weights or min(weights) < 0 or max(weights) <= 0:
        raise ValueError(f"weights must be numbers of at least 0, and not all 0: {list(weights)}")
    total = math.fsum(weights)
    counts = [int(max(0.0, items * weight / total - 1e-9)) for weight in weights]  # lower bounds
    usable = [rank for rank, weight in enumerate(weights) if weight > 0]
    while sum(counts) < items:  # give one more item to the rank that would finish it first
        counts[min(usable, key=lambda rank: (counts[rank] + 1) / weights[rank])] += 1
    return counts


def torus_blocks(rows: int, columns: int, ranks: int) -> list[Rectangle]:
    """Return one rectangle of a torus of cells for each rank; together they cover the torus.

    The largest rectangle is as small as possible, and among such cuts the borders are as short as possible. The torus
    is cut into bands, and each band into rectangles of nearly equal width. Bands run along the rows or along the
    columns, whichever is better. With more ranks than cells there is one rectangle for each cell.

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
    """Return the number of cells outside of a rectangle that are W, N, E or S neighbours of its cells, each counted once.

    >>> border(4, 4, 2, 2), border(4, 4, 1, 4), border(3, 3, 2, 2)
    (8, 8, 4)
    """
    sides = 0 if width == columns else height * min(2, columns - width)
    return sides + (0 if height == rows else width * min(2, rows - height))


def _bands(rows: int, columns: int, ranks: int) -> tuple[int, int, Cut]:
    """Return the best cut into bands along the rows: (cells of the largest rectangle, total length of borders, cut)."""
    most = -(-rows * columns // ranks)
    while (cut := _shortest(rows, columns, ranks, most)) is None:
        most += 1
    return most, *cut


def _shortest(rows: int, columns: int, ranks: int, most: int) -> tuple[int, Cut] | None:
    """Return (length of borders, cut) of the cut with the shortest borders whose rectangles have at most `most` cells.

    None if there is no such cut into `ranks` rectangles.
    """
    fewest = [0]  # fewest[r]: the number of rectangles that r rows need at least
    least = {
        h: -(-columns // (most // h)) for h in range(1, min(rows, most) + 1)
    }  # rectangles in a band, by its height
    for left in range(1, rows + 1):
        fewest.append(min(fewest[left - h] + n for h, n in least.items() if h <= left))

    @cache
    def length(height: int, count: int) -> int:
        """Return the total length of the borders in a band of this height, cut into `count` rectangles."""
        return sum(border(rows, columns, height, width) for width in shares(columns, [1.0] * count))

    @cache
    def best(left: int, count: int) -> tuple[int, Cut] | None:
        """Return (length of borders, cut) of the best cut of `left` rows into `count` rectangles; None: impossible."""
        if left == 0:
            return (0, ())
        candidates: list[tuple[int, Cut]] = []
        # Of equally short borders the first is taken: that with the lowest bands, because a whole row has only two
        # peers.
        for height in range(1, min(left, most) + 1):
            rest = left - height
            low, high = max(least[height], count - rest * columns), min(columns, count - fewest[rest])
            for number in range(low, high + 1):
                if (after := best(rest, count - number)) is not None:
                    candidates.append((length(height, number) + after[0], ((height, number), *after[1])))
        return min(candidates, key=lambda each: each[0], default=None)

    return best(rows, ranks) if fewest[rows] <= ranks else None


def _cut(rows: int, columns: int, cut: Cut) -> list[Rectangle]:
    """Return the rectangles of a cut, band by band."""
    out, top = [], 0
    for height, count in sorted(cut, reverse=True):
        left = 0
        for width in shares(columns, [1.0] * count):
            out.append((top, left, height, width))
            left += width
        top += height
    return out


def _on_grids(rows: int, columns: int, ranks: int, replicas: int) -> list[Iterable[int]]:
    """Return the cells of each rank, for several replicas of a grid with these rows and columns.

    Ranks and replicas are divided into the same number of groups, as many as possible. The ranks of a group share the
    replicas of their group; each has the same rectangle of all of them.

    >>> [list(own) for own in _on_grids(1, 2, 4, 2)], [list(own) for own in _on_grids(1, 2, 2, 4)]
    ([[0], [1], [2], [3]], [[0, 1, 2, 3], [4, 5, 6, 7]])
    """
    groups, cells = math.gcd(ranks, replicas), rows * columns
    blocks = [_cells(rectangle, columns) for rectangle in torus_blocks(rows, columns, ranks // groups)]
    in_order = _in_order(shares(cells, [1.0] * len(blocks)))
    if max(map(len, blocks)) > len(in_order[0]):  # short borders are not worth a slower rank
        blocks = in_order
    used: list[Iterable[int]] = []
    for group in range(groups):
        of_group = range(group * replicas // groups, (group + 1) * replicas // groups)
        used += [[r * cells + cell for r in of_group for cell in block] for block in blocks]
    return [*used, *([] for _ in range(ranks - len(used)))]  # Spares come last.


def _in_order(counts: Sequence[int]) -> list[list[int]]:
    """Return blocks of consecutive numbers, from 0, with these lengths."""
    ends = list(accumulate(counts))
    return [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]


def _cells(block: Rectangle, columns: int) -> list[int]:
    """Return the numbers of the cells in a rectangle."""
    top, left, height, width = block
    return [row * columns + column for row in range(top, top + height) for column in range(left, left + width)]
