"""Draw a topology: its cells, lines between neighbours, and one neighbourhood in colour."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ganherd.strategies.cellular.topology import Topology
from ganherd.viz.pictures import DATA, GENERATED, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
LIGHT = "#dbe8fe"  # a neighbour's cell
RADIUS = 0.3  # of a cell; neighbouring cells have a distance of 1
STUB = 0.74  # length of a line across the border of a torus
LINE = "#c3cad4"
INK_ON_PAPER = "#1c2028"  # text in cells, which stay bright when a dark page changes INK


@dataclass(frozen=True)
class Edge:
    """A line from a cell towards one of its neighbours.

    On a torus, a line across the border is a short stub; the number of the neighbour is written at its end.
    """

    cell: int
    other: int
    end: Point
    wraps: bool = False
    one_sided: bool = False
    bend: float = 0.0

    def is_drawn(self, centre: int) -> bool:
        """Return whether to draw this line: of the two lines between two cells one is drawn, that from `centre` if any."""
        if self.wraps or self.one_sided:
            return True
        return self.cell == centre or (self.cell < self.other and self.other != centre)


def draw_topology(topology: Topology, centre: int | None = None, title: str = "") -> Figure:
    """Draw cells with their numbers, lines to their neighbours, and the neighbourhood of `centre` in colour.

    Lines across the border of a torus are short stubs that end at the number of the cell on the other side.
    """
    at = positions(topology)
    centre = _middle(topology) if centre is None else centre
    edges = [edge for edge in _edges(topology, at) if edge.is_drawn(centre)]
    ends = np.array([edge.end for edge in edges if edge.wraps] or [at[0]])
    low = np.minimum(at.min(0) - RADIUS - 0.1, ends.min(0) - 0.2)
    high = np.maximum(at.max(0) + RADIUS + 0.1, ends.max(0) + 0.2)
    width, height = high - low
    inch = min(0.8, 9 / max(width, height))  # per unit; a large grid must fit a page.
    figure, (axes,) = new_figure(max(width * inch, 3.4), height * inch + 0.7)
    show_cells(axes, low, high)
    near = set(topology.neighbours(centre))
    for edge in sorted(edges, key=lambda e: e.cell == centre):  # Coloured lines are drawn last.
        _draw_edge(axes, edge, at[edge.cell], edge.cell == centre, inch)
    _draw_hints(axes, edges, centre, inch)
    for cell, place in enumerate(at):
        _draw_cell(axes, cell, place, cell == centre, cell in near, inch)
    figure.suptitle(title or describe(topology), color=INK, fontsize=10, x=0.02, ha="left")
    figure.supxlabel(_meets(topology, centre), color=INK, fontsize=9)
    return figure


def show_cells(axes: Axes, low: np.ndarray, high: np.ndarray) -> None:
    """Show positions from `low` to `high`, each (right, down), on axes without ticks, with row 0 at the top."""
    axes.axis("off")
    axes.set_aspect("equal")
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(high[1], low[1])


def describe(topology: Topology) -> str:
    """Return the name of a topology with the size of its neighbourhoods.

    >>> from ganherd.strategies.cellular.topology import graph, torus
    >>> describe(torus(4, 4)), describe(graph([[1], [0], [0, 1]]))
    ('torus 4×4: neighbourhoods of 5', 'graph 3: neighbourhoods of 2 to 3')
    """
    fewest, most = int(topology.count.min()), int(topology.count.max())
    return f"{topology.name}: neighbourhoods of {most if fewest == most else f'{fewest} to {most}'}"


def _meets(topology: Topology, cell: int) -> str:
    """Return a caption that lists the neighbours of a cell."""
    others = [str(other) for other in topology.neighbours(cell)]
    if not others:
        return f"cell {cell} has no neighbours"
    if len(others) > 8:
        return f"cell {cell} meets {len(others)} others"
    return f"cell {cell} meets " + (", ".join(others[:-1]) + " and " if others[1:] else "") + others[-1]


def positions(topology: Topology) -> np.ndarray:
    """Return the position (right, down) of each cell, float64 [N, 2]: on the grid, or clockwise on a circle."""
    n = len(topology)
    if topology.rows:
        row, column = np.divmod(np.arange(n), topology.columns)
        return np.stack([column, row], 1).astype(np.float64)
    angle = 2 * np.pi * np.arange(n) / n
    # Neighbours have a distance of at least 1.
    radius = 0.5 / math.sin(math.pi / n) * (1.25 if n < 9 else 1) if n > 1 else 0.0
    return radius * np.stack([np.sin(angle), -np.cos(angle)], 1)


def _middle(topology: Topology) -> int:
    """Return the number of the cell in the middle of a grid, or 0 if cells lie on a circle."""
    return topology.rows // 2 * topology.columns + topology.columns // 2 if topology.rows else 0


def _edges(topology: Topology, at: np.ndarray) -> Iterator[Edge]:
    """Yield a line from every cell to each of its neighbours; a line across the border of a torus is a short stub.

    Args:
        topology: The cells and their neighbours.
        at: The positions of the cells [N, 2].
    """
    seen = [set(topology.neighbours(cell)) for cell in range(len(topology))]
    size = np.array([topology.columns, topology.rows])
    for cell, others in enumerate(seen):
        for other in sorted(others):
            one_sided = cell not in seen[other]
            step = at[other] - at[cell]
            if topology.rows and np.abs(step).max() > 1:
                short = step - size * np.round(step / size)  # the short way around the torus
                if np.abs(short).max() <= 1:
                    yield Edge(cell, other, _beyond(at[cell] + short, size), wraps=True)
                    continue
            bend = 0.18 if topology.rows and np.abs(step).max() > 1 else 0.0  # around the cells in between
            yield Edge(cell, other, (at[other][0], at[other][1]), one_sided=one_sided, bend=bend)


def _beyond(place: np.ndarray, size: np.ndarray) -> Point:
    """Return the end of a stub: a position outside of the grid, moved to at most `STUB` beyond the grid's border.

    Args:
        place: The position (right, down).
        size: The numbers of columns and rows of the grid.
    """
    right, down = np.clip(place, -STUB, size - 1 + STUB)
    return float(right), float(down)


def _draw_edge(axes: Axes, edge: Edge, start: np.ndarray, coloured: bool, inch: float) -> None:
    """Draw a line from `start` to the end of the edge, with an arrow if only one of the two cells meets the other."""
    from matplotlib.patches import FancyArrowPatch

    style = "->,head_length=4,head_width=2.5" if edge.one_sided else "-"
    room = 72 * inch * RADIUS if edge.one_sided else 0  # The head of an arrow must not be hidden by the cell.
    axes.add_patch(
        FancyArrowPatch(
            (float(start[0]), float(start[1])), edge.end, arrowstyle=style, connectionstyle=f"arc3,rad={edge.bend}",
            shrinkA=0, shrinkB=room, color=GENERATED if coloured else LINE, linewidth=2.4 * _scale(inch) if coloured
            else 1.3 * _scale(inch), linestyle=(0, (2, 1.4)) if edge.wraps else "-", zorder=2 if coloured else 1,
        )
    )  # fmt: skip


def _draw_hints(axes: Axes, edges: list[Edge], centre: int, inch: float) -> None:
    """Draw at the end of each stub the number of the cell that it leads to, in small print."""
    for edge in {edge.end: edge for edge in sorted(edges, key=lambda e: e.cell == centre) if edge.wraps}.values():
        axes.text(
            *edge.end, str(edge.other), ha="center", va="center", fontsize=max(4.5, 8.5 * _scale(inch)), zorder=3,
            color=GENERATED if edge.cell == centre else "#7b8594",
            bbox={"boxstyle": "circle,pad=0.18", "fc": "white", "ec": "none"},
        )  # fmt: skip


def _draw_cell(axes: Axes, cell: int, place: np.ndarray, is_centre: bool, is_near: bool, inch: float) -> None:
    """Draw a cell with its number."""
    from matplotlib.patches import Circle

    face = GENERATED if is_centre else LIGHT if is_near else "white"
    line = GENERATED if is_centre or is_near else DATA
    middle = (float(place[0]), float(place[1]))
    axes.add_patch(Circle(middle, RADIUS, facecolor=face, edgecolor=line, linewidth=1.6 * _scale(inch), zorder=4))
    axes.text(
        *middle, str(cell), ha="center", va="center_baseline", zorder=5, fontsize=max(4.5, 11 * _scale(inch)),
        color="white" if is_centre else INK_ON_PAPER, fontweight="bold" if is_centre else "normal",
    )  # fmt: skip


def _scale(inch: float) -> float:
    """Return the factor for line widths and font sizes at this many inches per cell; cells shrink more."""
    scale: float = min(1.0, (inch / 0.8) ** 0.8)
    return scale
