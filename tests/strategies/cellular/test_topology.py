"""Neighbourhoods by hand on every topology: the centre first, everybody once, the torus not transposed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyArrowPatch
from PIL import Image

from ganherd.strategies.cellular import topology as t
from ganherd.strategies.cellular.history.topology_picture import draw_topology, positions
from ganherd.util.errors import UserError
from ganherd.viz import pictures

SIDE = st.integers(1, 7)


def lists(topology: t.Topology) -> list[list[int]]:
    return [topology.members(cell) for cell in range(len(topology))]


@pytest.mark.parametrize(
    ("rows", "columns", "wanted"),
    [
        (1, 1, [[0]]),
        (1, 2, [[0, 1], [1, 0]]),
        (1, 3, [[0, 2, 1], [1, 0, 2], [2, 1, 0]]),
        (2, 2, [[0, 1, 2], [1, 0, 3], [2, 3, 0], [3, 2, 1]]),  # W and E are the same cell, and so are N and S: s = 3
        (2, 3, [[0, 2, 3, 1], [1, 0, 4, 2], [2, 1, 5, 0], [3, 5, 0, 4], [4, 3, 1, 5], [5, 4, 2, 3]]),
        (3, 3, [[0, 2, 6, 1, 3], [1, 0, 7, 2, 4], [2, 1, 8, 0, 5],
                [3, 5, 0, 4, 6], [4, 3, 1, 5, 7], [5, 4, 2, 3, 8],
                [6, 8, 3, 7, 0], [7, 6, 4, 8, 1], [8, 7, 5, 6, 2]]),
    ],
)  # fmt: skip
def test_a_small_torus_by_hand(rows: int, columns: int, wanted: list[list[int]]) -> None:
    assert lists(t.torus(rows, columns)) == wanted
    assert t.torus(rows, columns).widest == len(wanted[0])


def test_the_torus_is_not_transposed() -> None:
    nine, sixteen = t.torus(3, 3), t.torus(4, 4)
    assert set(nine.neighbours(1)) == {0, 2, 4, 7}  # the reference implementation gives cell 1 those of cell 3
    assert set(nine.neighbours(3)) == {0, 4, 5, 6}
    assert sixteen.members(0) == [0, 3, 12, 1, 4]
    assert sixteen.members(6) == [6, 5, 2, 7, 10]
    assert sixteen.members(13) == [13, 12, 9, 14, 1]
    assert sixteen.members(15) == [15, 14, 11, 12, 3]


def test_a_torus_need_not_be_square() -> None:
    wide = t.torus(3, 5)
    assert len(wide) == 15 and wide.widest == 5
    assert wide.members(0) == [0, 4, 10, 1, 5]
    assert wide.members(7) == [7, 6, 2, 8, 12]
    assert wide.members(14) == [14, 13, 9, 10, 4]
    assert t.torus(5, 3).members(14) == [14, 13, 11, 12, 2]


def test_moore_has_the_diagonals_too() -> None:
    assert t.moore(4, 4).members(0) == [0, 3, 12, 1, 4, 15, 13, 5, 7]
    assert t.moore(4, 4).members(5) == [5, 4, 1, 6, 9, 0, 2, 10, 8]
    assert all(sorted(row) == list(range(9)) for row in lists(t.moore(3, 3)))
    assert all(sorted(row) == list(range(4)) for row in lists(t.moore(2, 2)))
    assert lists(t.moore(1, 1)) == [[0]]


def test_rings_by_hand() -> None:
    assert lists(t.ring(5)) == [[0, 4, 1], [1, 0, 2], [2, 1, 3], [3, 2, 4], [4, 3, 0]]
    assert t.ring(8, 2).members(0) == [0, 7, 1, 6, 2]
    assert t.ring(8, 2).members(7) == [7, 6, 0, 5, 1]
    assert lists(t.ring(1, 3)) == [[0]]
    assert lists(t.ring(2)) == [[0, 1], [1, 0]]
    assert lists(t.ring(4, 2))[0] == [0, 3, 1, 2]  # the cell opposite is reached from both sides, and listed once
    assert [sorted(row) for row in lists(t.ring(5, 9))] == [list(range(5))] * 5


def test_isolated_and_full() -> None:
    assert lists(t.isolated(3)) == [[0], [1], [2]]
    assert lists(t.full(4)) == [[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]]
    assert lists(t.full(1)) == [[0]]


def test_a_graph_may_have_rows_of_unlike_lengths() -> None:
    star = t.graph([[1, 2, 3, 2, 0], [0], [], [0, 3]])  # repeated or listed itself: once
    assert lists(star) == [[0, 1, 2, 3], [1, 0], [2], [3, 0]]
    assert star.table.tolist() == [[0, 1, 2, 3], [1, 0, 1, 1], [2, 2, 2, 2], [3, 0, 3, 3]]
    assert star.count.tolist() == [4, 2, 1, 2]
    assert star.mask.tolist() == [
        [True] * 4,
        [True, True, False, False],
        [True] + [False] * 3,
        [True, True, False, False],
    ]


@given(SIDE, SIDE, st.sampled_from(["torus", "moore", "ring", "isolated", "full"]), st.integers(1, 4))
def test_every_meeting_is_mutual_and_every_row_is_valid(rows: int, columns: int, name: str, k: int) -> None:
    made = t.build(name, rows, columns, k)
    assert made.table.dtype == np.int64 and made.table.shape == (rows * columns, made.widest)
    assert made.table[:, 0].tolist() == list(range(rows * columns))
    for cell in range(len(made)):
        members = made.members(cell)
        assert len(set(members)) == len(members) == made.count[cell]
        assert all(cell in made.members(other) for other in members)
        assert (made.table[cell][~made.mask[cell]] == cell).all()
    assert (made.count == made.widest).all()  # these are the same from every cell


@given(SIDE, SIDE, st.data())
def test_a_torus_looks_the_same_from_every_cell(rows: int, columns: int, data: st.DataObject) -> None:
    made = t.torus(rows, columns)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    here = [divmod(member, columns) for member in made.members(0)]
    moved = [(r + row) % rows * columns + (c + column) % columns for r, c in here]
    assert made.members(row * columns + column) == moved


def test_replicas_never_meet() -> None:
    one = t.graph([[1], [0, 2], [1]])
    three = t.replicated(one, 3)
    assert lists(three) == [[m + 3 * r for m in one.members(cell)] for r in range(3) for cell in range(3)]
    assert three.table[3].tolist() == [3, 4, 3]  # filling belongs to the replica too
    assert t.replicated(one, 1) == one


def test_a_population_meets_its_own_cell_first() -> None:
    made = t.with_population(t.graph([[1], [0, 2], [1]]), 2)
    assert len(made) == 6
    assert lists(made) == [
        [0, 1, 2, 3],
        [1, 0, 2, 3],
        [2, 3, 0, 1, 4, 5],
        [3, 2, 0, 1, 4, 5],
        [4, 5, 2, 3],
        [5, 4, 2, 3],
    ]
    assert made.table[5].tolist() == [5, 4, 2, 3, 5, 5]
    assert t.with_population(t.torus(3, 3), 3).widest == 15
    assert t.with_population(t.ring(4), 1) == t.ring(4)
    assert t.replicated(made, 2).members(7) == [7, 6, 8, 9]


def test_a_topology_is_a_value() -> None:
    assert t.torus(3, 3) == t.torus(3, 3) and hash(t.torus(3, 3)) == hash(t.torus(3, 3))
    assert t.torus(3, 3) != t.moore(3, 3) and t.torus(2, 3) != t.torus(3, 2)
    with pytest.raises(ValueError, match="read-only"):
        t.torus(3, 3).table[0, 0] = 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: t.torus(0, 3), "at least 1 row and 1 column, not 0 × 3"),
        (lambda: t.build("full", 2, -1), "at least 1 row and 1 column"),
        (lambda: t.ring(0), "at least 1 cell"),
        (lambda: t.ring(5, 0), "for none choose isolated"),
        (lambda: t.isolated(0), "at least 1 cell"),
        (lambda: t.full(0), "at least 1 cell"),
        (lambda: t.graph([]), "at least 1 cell"),
        (lambda: t.graph([[1], [2]]), "cell 1 of the graph lists 2: its cells are numbered from 0 to 1"),
        (lambda: t.graph([[-1]]), "lists -1"),
        (lambda: t.graph([[0.5]]), "lists 0.5"),  # type: ignore[list-item]
        (lambda: t.graph([[True], []]), "lists True"),
        (lambda: t.graph([3]), "needs a list of its neighbours, not 3"),  # type: ignore[list-item]
        (lambda: t.graph(["01"]), "needs a list of its neighbours"),  # type: ignore[list-item]
        (lambda: t.build("tours", 3, 3), "choose torus, moore, ring, isolated, full or graph"),
        (lambda: t.build("graph", 3, 3), "needs the list of each cell's neighbours"),
        (lambda: t.build("torus", 3, 3, 1, [[0]]), "takes no list of neighbours"),
        (lambda: t.with_population(t.ring(3), 0), "population of at least 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(make: Callable[[], t.Topology], says: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert says in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "made",
    [t.torus(1, 1), t.torus(3, 3), t.moore(2, 5), t.ring(8), t.full(5), t.build("isolated", 2, 2), t.graph([[1], []])],
    ids=lambda made: made.name,
)
def test_every_topology_has_a_picture(made: t.Topology, tmp_path: Path) -> None:
    path = pictures.save(draw_topology(made, centre=len(made) - 1), tmp_path / "topology.png")
    with Image.open(path) as picture:
        assert min(picture.size) > 100 and len(picture.convert("RGB").getcolors(1 << 20) or ()) > 3
    at = positions(made)
    apart = np.linalg.norm(at[:, None] - at[None], axis=2) + 9 * np.eye(len(made))
    assert apart.min() > 0.99  # no cell covers another


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        (t.ring(6), 6),  # each pair of neighbours once
        (t.torus(3, 3), 12 + 12),  # lines, and a stub at both ends of each line across the border
        (t.graph([[1], [0, 2], []]), 2),  # a mutual and a one-sided line
    ],
    ids=["ring", "torus", "graph"],
)
def test_a_picture_has_one_line_for_two_neighbours(made: t.Topology, lines: int) -> None:
    for centre in range(len(made)):
        drawn = [patch for patch in draw_topology(made, centre).axes[0].patches if isinstance(patch, FancyArrowPatch)]
        assert len(drawn) == lines
        near = made.neighbours(centre)
        coloured = [patch for patch in drawn if patch.get_linewidth() == max(p.get_linewidth() for p in drawn)]
        assert len(coloured) == (len(near) or lines)


def test_a_picture_names_the_cells_and_the_far_side_of_a_torus() -> None:
    figure = draw_topology(t.torus(3, 3), centre=0)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(texts, key=int) == sorted([*map(str, range(9)), *"678", *"012", *"258", *"036"], key=int)
    assert "cell 0 meets 2, 6, 1 and 3" in figure.get_supxlabel()
