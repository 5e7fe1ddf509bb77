"""Every member lives on one rank, the work is as even as can be, and the borders of a torus are short."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganherd.comm.placement import Rectangle, border, place, shares, torus_blocks
from ganherd.strategies.cellular.topology import torus


def cells(block: Rectangle, columns: int) -> set[int]:
    top, left, height, width = block
    return {r * columns + c for r in range(top, top + height) for c in range(left, left + width)}


def met(rows: int, columns: int, own: set[int]) -> set[int]:
    """The cells of others that a block's meet, as the strategy itself finds them."""
    topology = torus(rows, columns)
    return {other for cell in own for other in topology.neighbours(cell)} - own


def splits(length: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut a length into so many pieces of at least 1."""
    if parts == 1:
        yield (length,) if length else ()
    for first in range(1, length - parts + 2) if parts > 1 else ():
        yield from ((first, *rest) for rest in splits(length - first, parts - 1))


def all_bands(rows: int, columns: int, ranks: int) -> Iterator[list[Rectangle]]:
    """All cuts into bands along the rows, each cut across into rectangles whose widths differ by 1 at most."""
    for bands in range(1, rows + 1):
        for heights, counts in product(splits(rows, bands), product(range(1, columns + 1), repeat=bands)):
            if sum(counts) != ranks:
                continue
            blocks: list[Rectangle] = []
            for number, (height, count) in enumerate(zip(heights, counts, strict=True)):
                edges = [column * columns // count for column in range(count + 1)]
                blocks += [(sum(heights[:number]), left, height, right - left) for left, right in pairwise(edges)]
            yield blocks


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (2, 2), (2, 3), (3, 2), (3, 3), (3, 4), (4, 4), (2, 5)])
def test_no_cut_into_bands_is_better(rows: int, columns: int) -> None:
    for ranks in range(1, rows * columns + 2):
        used = min(ranks, rows * columns)
        found = torus_blocks(rows, columns, ranks)
        assert len(found) == used
        assert sorted(cell for block in found for cell in cells(block, columns)) == list(range(rows * columns))
        turned = [[(left, top, w, h) for top, left, h, w in cut] for cut in all_bands(columns, rows, used)]
        best = min(cost(rows, columns, cut) for cut in [*all_bands(rows, columns, used), *turned])
        assert cost(rows, columns, found) == best, ranks


def cost(rows: int, columns: int, blocks: list[Rectangle]) -> tuple[int, int]:
    return max(h * w for _, _, h, w in blocks), sum(len(met(rows, columns, cells(each, columns))) for each in blocks)


@given(st.integers(1, 7), st.integers(1, 7), st.data())
def test_a_rectangles_border_is_what_its_cells_meet(rows: int, columns: int, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    assert border(rows, columns, height, width) == len(met(rows, columns, cells((0, 0, height, width), columns)))


@given(
    cells=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    ranks=st.integers(1, 20),
    replicas=st.integers(1, 4),
    together=st.integers(1, 3),
    on_grid=st.booleans(),
)
def test_every_member_is_placed_on_exactly_one_rank(
    cells: tuple[int, int], ranks: int, replicas: int, together: int, on_grid: bool
) -> None:
    members = cells[0] * cells[1] * together
    found = place(members, ranks, replicas=replicas, together=together, grid=cells if on_grid else None)
    assert len(found.ranks) == ranks
    assert sorted(m for own in found.ranks for m in own) == list(range(members * replicas))
    assert all(list(own) == sorted(own) for own in found.ranks)
    homes = found.locations()
    assert all(homes[m][0] == homes[m - m % together][0] for m in homes)  # a cell is not parted
    used = [rank for rank, own in enumerate(found.ranks) if own]
    assert used == list(range(len(used)))  # spares are the last
    if replicas == 1:
        assert max(map(len, found.ranks)) == together * -(-members // together // min(ranks, members // together))


def test_replicas_stay_on_one_rank_if_possible() -> None:
    assert place(4, 2, replicas=2, grid=(2, 2)).ranks == (tuple(range(4)), tuple(range(4, 8)))
    apart = place(4, 4, replicas=2, grid=(2, 2)).ranks
    assert [{m // 4 for m in own} for own in apart] == [{0}, {0}, {1}, {1}]


def test_rectangles_never_make_a_step_slower() -> None:
    assert [len(own) for own in place(9, 2, grid=(3, 3)).ranks] == [5, 4]


@given(st.integers(0, 7), st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.7, 3.0]), min_size=1, max_size=4).filter(any))
def test_no_other_shares_finish_earlier(items: int, weights: list[float]) -> None:
    found = shares(items, weights)
    assert sum(found) == items

    def slowest(counts: tuple[int, ...] | list[int]) -> float:
        times = [n / w if w else float("inf") for n, w in zip(counts, weights, strict=True) if n]
        return max(times, default=0.0)

    every = (counts for counts in product(range(items + 1), repeat=len(weights)) if sum(counts) == items)
    assert slowest(found) <= min(map(slowest, every)) * (1 + 1e-12)


def test_faster_ranks_get_more() -> None:
    assert [len(own) for own in place(12, 3, weights=[2, 1, 1]).ranks] == [6, 3, 3]
    assert place(6, 2, together=2, weights=[1, 2]).ranks == ((0, 1), (2, 3, 4, 5))
