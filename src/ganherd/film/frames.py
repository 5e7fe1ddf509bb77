"""Draw a frame of a film: a heading, the samples of every member, arrows for exchanged nets, and a time bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from ganherd.film.frame_layout import FrameLayout
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.viz.pictures import FRAME, GENERATED, INK, SOFT
from ganherd.viz.sheets import MARGIN, Heading, fitted, font

# the samples of all members at a step: a picture, or points [N, samples, 2] with NaN for those that are not finite
Sheet = Image.Image | np.ndarray
# colours of members, by their number modulo 10; the same as on the live page
_COLOURS = (
    "#3b6fd8",
    "#d9703a",
    "#2f9e6e",
    "#c2498f",
    "#8265d6",
    "#b08a1c",
    "#2a9db3",
    "#cf4b4b",
    "#6b8f2c",
    "#7a6a5a",
)
_TRACK = "#dfe3e8"  # background of the time bar
_BIG, _SMALL, _TINY = 24, 15, 12  # font sizes
_HEADING = 92  # pixels above the wall of tiles, without the margin
_BAR = 34  # pixels below the wall of tiles
_ALL_SAMPLES = 70  # tiles of at least this many pixels show all samples of a member, smaller ones the first
_FINE = 2  # points and arrows are drawn larger by this factor and shrunk, for smooth edges


@dataclass(frozen=True)
class Arrow:
    """An arrow between the tiles of two members that exchanged a net."""

    start: int  # number of the tile
    end: int
    colour: str
    is_mutual: bool = False  # whether both gave a net: the arrow then has two heads


@dataclass(frozen=True)
class FrameContent:
    """What a frame shows of a saved step."""

    heading: Heading
    sheet: Sheet
    captions: Sequence[str]  # name below each member's tile
    colours: Sequence[str | None]  # colour of the frame around each member's tile; None: a thin grey one


def member_colour(member: int) -> str:
    """Return the colour of a member; there are ten, which repeat."""
    return _COLOURS[member % len(_COLOURS)]


class FramePainter:
    """Draw the frames of a film, which all have the same size and layout."""

    def __init__(self, index: SpriteIndex, layout: FrameLayout, members: Sequence[int]) -> None:
        """Prepare frames of some members.

        Args:
            index: The layout of the sprite sheets.
            layout: The places of the tiles.
            members: Their numbers in the sheets; those for which the layout has no place are not drawn.
        """
        self._index, self._layout, self._members = index, layout, members[: len(layout.places)]
        self.size = layout.size[0] + 2 * MARGIN, 2 * MARGIN + _HEADING + layout.size[1] + _BAR
        self._top = MARGIN + _HEADING

    def draw_herd(self, content: FrameContent) -> Image.Image:
        """Draw a frame without arrows and time bar."""
        frame = Image.new("RGB", self.size, "white")
        pen = ImageDraw.Draw(frame)
        room, big, small = self._layout.size[0], font(_BIG, bold=True), font(_SMALL)
        pen.text((MARGIN, MARGIN + _BIG), fitted(content.heading.title, big, room), INK, big, anchor="ls")
        for number, line in enumerate(content.heading.facts, 1):
            pen.text((MARGIN, MARGIN + _BIG + 4 + 22 * number), fitted(line, small, room), SOFT, small, anchor="ls")
        if self._layout.torus is not None:
            self._draw_edge(pen)
        for place, member in enumerate(self._members):
            left, top = self._place(place)
            tile, width = self._layout.tile, 3 if self._layout.tile >= 40 else 2
            colour = content.colours[place]
            frame.paste(self._tile(content.sheet, member), (left, top))
            if colour is None:
                pen.rectangle((left - 1, top - 1, left + tile, top + tile), outline=FRAME)
            else:
                box = (left - width, top - width, left + tile + width - 1, top + tile + width - 1)
                pen.rectangle(box, outline=colour, width=width)
            if self._layout.has_captions:
                name = fitted(content.captions[place], font(_TINY), tile)
                pen.text((left, top + tile + 4), name, INK, font(_TINY), anchor="la")
        return frame

    def draw_time(
        self, herd: Image.Image, progress: float, arrows: Sequence[Arrow], arrived: float | None = None
    ) -> Image.Image:
        """Return a copy of a frame with arrows for exchanges and the time bar.

        Args:
            herd: The frame without them, from `draw_herd`.
            progress: The position of the time bar, from 0 to 1.
            arrows: The exchanges.
            arrived: How far along the arrows a dot for each net is, from 0 to 1; None: no dots.
        """
        frame = herd.copy()
        if arrows:
            self._draw_arrows(frame, arrows, arrived)
        self._draw_bar(ImageDraw.Draw(frame), progress)
        return frame

    def _place(self, place: int) -> tuple[int, int]:
        left, top = self._layout.places[place]
        return MARGIN + left, self._top + top

    def _tile(self, sheet: Sheet, member: int) -> Image.Image:
        size = self._layout.tile
        return (
            _scatter(sheet[member], self._index, size)
            if isinstance(sheet, np.ndarray)
            else self._samples(sheet, member)
        )

    def _samples(self, sheet: Image.Image, member: int) -> Image.Image:
        """Return a tile with the samples of a member from a sheet: all, or only the first if the tile is small."""
        index, size = self._index, self._layout.tile
        tall, wide = index.tile
        shown = index.side if size >= _ALL_SAMPLES else 1
        gap = max(1, size // 60) if shown > 1 else 0
        room = (size - gap * (shown - 1)) / shown
        scale = room / max(tall, wide)
        box = (max(1, int(wide * scale)), max(1, int(tall * scale)))
        method = Image.Resampling.NEAREST if scale >= 1.6 else Image.Resampling.BILINEAR
        left, top = member % index.columns * index.side * wide, member // index.columns * index.side * tall
        tile = Image.new("RGB", (size, size), "white")
        inset = [(size - shown * side - gap * (shown - 1)) // 2 for side in box]
        for row in range(shown):
            for column in range(shown):
                x, y = left + column * wide, top + row * tall
                sample = sheet.resize(box, method, (x, y, x + wide, y + tall))
                tile.paste(sample, (inset[0] + column * (box[0] + gap), inset[1] + row * (box[1] + gap)))
        return tile

    def _edge(self) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom, in pixels of the frame, of the box around all tiles."""
        columns = [left for left, _ in self._layout.places]
        left, right = min(columns) + MARGIN - 9, max(columns) + MARGIN + self._layout.tile + 8
        return left, self._top - 9, right, self._top + self._layout.size[1] + 5

    def _draw_edge(self, pen: ImageDraw.ImageDraw) -> None:
        """Draw a dashed line around the tiles of a torus, to show that opposite edges are joined."""
        left, top, right, bottom = self._edge()
        for x in range(left, right, 10):
            for y in (top, bottom):
                pen.line([(x, y), (min(x + 5, right), y)], FRAME)
        for y in range(top, bottom, 10):
            for x in (left, right):
                pen.line([(x, y), (x, min(y + 5, bottom))], FRAME)

    def _draw_arrows(self, frame: Image.Image, arrows: Sequence[Arrow], arrived: float | None) -> None:
        """Draw arrows inside the box around the tiles; on a torus they may leave it and enter on the other side."""
        left, top, right, bottom = self._edge()
        layer = Image.new("RGBA", ((right - left) * _FINE, (bottom - top) * _FINE))
        pen = ImageDraw.Draw(layer)
        for arrow in arrows:
            for x1, y1, x2, y2 in self._layout.ways(arrow.start, arrow.end):
                dx, dy = MARGIN - left, self._top - top
                way = _curve(x1 + dx, y1 + dy, x2 + dx, y2 + dy, 0.3 * self._layout.tile)
                _draw_arrow(pen, [(x * _FINE, y * _FINE) for x, y in way], arrow, arrived)
        small = layer.resize((right - left, bottom - top), Image.Resampling.BOX)
        frame.paste(small, (left, top), small)

    def _draw_bar(self, pen: ImageDraw.ImageDraw, progress: float) -> None:
        top = self._top + self._layout.size[1] + _BAR - 10
        left, right = MARGIN, self.size[0] - MARGIN
        at = left + (right - left) * min(1.0, max(0.0, progress))
        pen.rounded_rectangle((left, top, right, top + 5), 3, _TRACK)
        if at - left >= 6:
            pen.rounded_rectangle((left, top, at, top + 5), 3, GENERATED)
        pen.ellipse((at - 6, top - 4, at + 6, top + 8), GENERATED, "white", 2)


def _scatter(points: np.ndarray, index: SpriteIndex, size: int) -> Image.Image:
    """Return a tile of `size` pixels with the points [n, 2] of a member. Its limits are those of the data."""
    low, high = np.array(index.low[:2]), np.array(index.high[:2])
    half = float((high - low).max(initial=0)) * 0.58 or 1.0
    places = (0.5 + (points - (low + high) / 2) / (2 * half)) * size * _FINE
    tile = Image.new("RGB", (size * _FINE, size * _FINE), "white")
    pen, radius = ImageDraw.Draw(tile), max(1.2, size / 70) * _FINE
    for x, y in places[np.isfinite(places).all(1) & (np.abs(places) < 4 * size * _FINE).all(1)].tolist():
        y = size * _FINE - y
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), GENERATED)
    return tile.resize((size, size), Image.Resampling.BOX)


def _curve(x1: float, y1: float, x2: float, y2: float, inset: float) -> list[tuple[float, float]]:
    """Return 25 points (x, y) of a bent line between two places (a quadratic Bezier curve).

    The line begins `inset` pixels after the first place, and ends as far before the second.
    """
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    inset = min(inset, 0.4 * length)
    ax, ay, bx, by = x1 + ux * inset, y1 + uy * inset, x2 - ux * inset, y2 - uy * inset
    bend = min(26.0, length / 6)
    cx, cy = (ax + bx) / 2 - uy * bend, (ay + by) / 2 + ux * bend
    parts = (i / 24 for i in range(25))
    return [
        ((1 - t) ** 2 * ax + 2 * t * (1 - t) * cx + t * t * bx, (1 - t) ** 2 * ay + 2 * t * (1 - t) * cy + t * t * by)
        for t in parts
    ]


def _draw_arrow(
    pen: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], arrow: Arrow, arrived: float | None
) -> None:
    """Draw an arrow along some points, with a dot at the share `arrived` of its length if that is not None."""
    pen.line(points, "#ffffffd0", 6 * _FINE, joint="curve")
    pen.line(points, arrow.colour, 2 * _FINE, joint="curve")
    _head(pen, points[-3], points[-1], arrow.colour)
    if arrow.is_mutual:
        _head(pen, points[2], points[0], arrow.colour)
    if arrived is not None:
        last = len(points) - 1
        for part in (arrived, 1 - arrived) if arrow.is_mutual else (arrived,):
            _dot(pen, points[round(part * last)], arrow.colour)


def _head(pen: ImageDraw.ImageDraw, before: tuple[float, float], tip: tuple[float, float], colour: str) -> None:
    angle = math.atan2(tip[1] - before[1], tip[0] - before[0])
    corners = [
        (tip[0] + far * _FINE * math.cos(angle + turn), tip[1] + far * _FINE * math.sin(angle + turn))
        for far, turn in ((5, 0.0), (9, 2.5), (9, -2.5))
    ]
    pen.polygon(corners, colour)


def _dot(pen: ImageDraw.ImageDraw, place: tuple[float, float], colour: str) -> None:
    x, y = place
    radius = 6 * _FINE
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), colour, "white", _FINE)
