"""Arrange the members of a herd in the frames of a film: a wall, or the cells of a torus."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ganherd.viz.sheets import MARGIN

CAPTION = 18  # pixels below a tile for its name
_WITH_CAPTION = 48  # pixels of a tile from which on it has a name
_SMALLEST = 10  # pixels of a tile
_NARROW = 2  # pixels between small tiles
_TALLEST = 0.72  # height of the wall as a share of its width, at most


@dataclass(frozen=True)
class FrameLayout:
    """Where the tile of each member is, in pixels from the corner of the wall."""

    places: tuple[tuple[int, int], ...]  # left and top
    tile: int  # width and height
    pitch: tuple[int, int]  # pixels from a cell to the next one, across and down
    size: tuple[int, int]  # width and height of the wall
    has_captions: bool  # whether there is room for names below the tiles
    torus: tuple[int, int] | None = None  # rows and columns, if the edges of the wall meet

    def ways(self, start: int, end: int) -> list[tuple[float, float, float, float]]:
        """Return the way between the centres of two members; over the edge of a torus it leaves and enters."""
        half = self.tile / 2
        x1, y1 = (value + half for value in self.places[start])
        x2, y2 = (value + half for value in self.places[end])
        if self.torus is None:
            return [(x1, y1, x2, y2)]
        wide, tall = self.torus[1] * self.pitch[0], self.torus[0] * self.pitch[1]
        dx, dy = wide * round((x1 - x2) / wide), tall * round((y1 - y2) / tall)
        return list(dict.fromkeys([(x1, y1, x2 + dx, y2 + dy), (x1 - dx, y1 - dy, x2, y2)]))


def lay_out(members: int, width: int, torus: tuple[int, int] | None = None, population: int = 1) -> FrameLayout:
    """Return the layout of some members in frames of a width; members that do not fit are left out.

    Args:
        torus: Rows and columns of a grid.
        population: Members in each cell of the grid.

    >>> lay_out(10, 720).places[:2], lay_out(10, 720).size
    (((2, 0), (136, 0)), (664, 294))
    """
    room = width - 2 * MARGIN
    cells = torus[0] * torus[1] if torus else members
    has_names = population == 1
    candidates = (torus[1],) if torus else range(1, min(cells, room // (_SMALLEST + _NARROW)) + 1)
    tile, columns = max(
        ((_tile_size(room, cells, columns, has_names), columns) for columns in candidates),
        key=lambda option: _covered(cells, *option),
    )
    gap = _gap(room / columns)
    inner = math.ceil(math.sqrt(population))
    tile -= tile % inner
    caption = CAPTION if has_names and tile >= _WITH_CAPTION else 0
    pitch = tile + gap, tile + gap + caption
    fits = max(1, int(2 * _TALLEST * room / pitch[1])) * columns
    part = tile // inner
    shift = max(0, room - columns * pitch[0] + gap) // 2
    places = [
        (shift + cell % columns * pitch[0] + i % inner * part, cell // columns * pitch[1] + i // inner * part)
        for cell in range(min(cells, fits))
        for i in range(population)
    ]
    rows = math.ceil(min(cells, fits) / columns)
    side = part - 1 if population > 1 else tile
    return FrameLayout(tuple(places[:members]), side, pitch, (room, rows * pitch[1] - gap), caption > 0, torus)


def _tile_size(room: int, cells: int, columns: int, has_names: bool) -> int:
    """Return the side of a tile if there are this many columns, so that the wall is not too tall."""
    gap, rows = _gap(room / columns), math.ceil(cells / columns)
    down = int((_TALLEST * room + gap) / rows) - gap
    down -= CAPTION if has_names and down - CAPTION >= _WITH_CAPTION else 0
    across = (room + gap) // columns - gap
    return max(1, min(across, max(down, _SMALLEST)))  # what does not fit below is left out


def _covered(cells: int, tile: int, columns: int) -> tuple[float, int]:
    """Return how good a number of columns is: large tiles and full rows; otherwise fewer rows."""
    return tile * tile * cells / (columns * math.ceil(cells / columns)), columns


def _gap(room: float) -> int:
    """Return the pixels between two tiles if each has this much room."""
    return 10 if room >= 60 else 4 if room >= 24 else _NARROW
