"""Arrange the tiles of all members in the frames of a film: as a wall in reading order, or as the cells of a torus."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ganherd.viz.sheets import MARGIN

CAPTION = 18  # height in pixels of the name below a tile
_WITH_CAPTION = 48  # tiles of at least this many pixels have a name
_SMALLEST = 10  # smallest side of a tile in pixels
_NARROW = 2  # pixels between small tiles
_TALLEST = 0.72  # largest ratio of the wall's height to its width


@dataclass(frozen=True)
class FrameLayout:
    """The places of all members' tiles (small pictures) in a frame.

    Lengths are in pixels. Places are relative to the left upper corner of the wall, which contains all tiles.
    """

    places: tuple[tuple[int, int], ...]  # left and top of each tile
    tile: int  # side of a tile
    pitch: tuple[int, int]  # distance from a cell to the next one, across and down
    size: tuple[int, int]  # width and height of the wall
    has_captions: bool  # whether there is room for names below the tiles
    torus: tuple[int, int] | None = None  # rows and columns if opposite edges are joined; None: no torus

    def ways(self, start: int, end: int) -> list[tuple[float, float, float, float]]:
        """Return the lines (x1, y1, x2, y2) of an arrow between the centres of the tiles of two members.

        On a torus the shortest way may cross an edge. There are then two lines: one leaves the wall, the other enters
        it.
        """
        half = self.tile / 2
        x1, y1 = (value + half for value in self.places[start])
        x2, y2 = (value + half for value in self.places[end])
        if self.torus is None:
            return [(x1, y1, x2, y2)]
        wide, tall = self.torus[1] * self.pitch[0], self.torus[0] * self.pitch[1]
        dx, dy = wide * round((x1 - x2) / wide), tall * round((y1 - y2) / tall)
        return list(dict.fromkeys([(x1, y1, x2 + dx, y2 + dy), (x1 - dx, y1 - dy, x2, y2)]))


def lay_out(members: int, width: int, torus: tuple[int, int] | None = None, population: int = 1) -> FrameLayout:
    """Choose a layout of the members in frames of a given width; members that do not fit have no place.

    Args:
        members: The number of members.
        width: The width of the frames in pixels, margins included.
        torus: Rows and columns of a grid; None: choose the number of columns.
        population: The number of members in each cell of the grid.

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
    """Return the largest side of a tile in pixels with this many columns, so that the wall is not too tall.

    Args:
        room: The width of the wall in pixels.
        has_names: Whether names are shown below large tiles.
    """
    gap, rows = _gap(room / columns), math.ceil(cells / columns)
    down = int((_TALLEST * room + gap) / rows) - gap
    down -= CAPTION if has_names and down - CAPTION >= _WITH_CAPTION else 0
    across = (room + gap) // columns - gap
    return max(1, min(across, max(down, _SMALLEST)))  # with the smallest tiles, the last rows may not fit


def _covered(cells: int, tile: int, columns: int) -> tuple[float, int]:
    """Return a sort key for choosing the number of columns: the area of tiles and how full rows are, then columns."""
    return tile * tile * cells / (columns * math.ceil(cells / columns)), columns


def _gap(room: float) -> int:
    """Return the pixels between two tiles if each has `room` pixels, the gap included."""
    return 10 if room >= 60 else 4 if room >= 24 else _NARROW
