"""Draw sheets: grids of images below a title and a line of facts. All pictures of samples and data are drawn by this module."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ganherd.util.text import one_line, printable_line
from ganherd.viz.pictures import FRAME, INK, MOST_ROWS, SOFT, draw_points, draw_points_and_data, to_image
from ganherd.viz.row_sheets import RowView, draw_rows

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

    from ganherd.viz.pictures import Picture

TILE = 56  # pixels to which small images are enlarged, about
WIDEST = 1600  # pixels of a grid
MOST_IMAGES = 2_500  # of a picture of samples
LONGEST = 24  # letters of a row's name
MARGIN = 28  # pixels around a sheet
_GAP = 5  # pixels between tiles, wide enough to keep the strokes of neighbours apart
_BIG, _SMALL = 26, 15  # font sizes of the title and of the facts
_MEMBER = "member "  # the name of a row of a member begins so
_DOT = "  ·  "  # between two facts


@dataclass(frozen=True)
class Heading:
    """What is written above a picture: a title, and facts in one line or more."""

    title: str
    facts: Sequence[str] = ()


def draw_samples(
    x: np.ndarray,
    y: np.ndarray | None = None,
    labels: Sequence[str] = (),
    *,
    member: np.ndarray | None = None,
    data: np.ndarray | None = None,
    heading: Heading | None = None,
    view: RowView | None = None,
) -> Picture:
    """Draw samples: images as a full grid, points next to those of the data, or rows of a table over those of the data.

    A row of the grid is one class, if there are equally many images of each; a class of many images has several lines.
    Otherwise the name of its class, or the number of its member, is below each image. A note says if not all are shown.

    Args:
        view: Names and points of rows; None: x are points or images.
    """
    if x.ndim == 2:
        if view is not None:
            figure = draw_rows(x, view, data)
        else:
            figure = draw_points(x) if data is None else draw_points_and_data(x, data)
        if heading:
            figure.set_figheight(figure.get_figheight() + 0.75)  # two lines
            facts = fill(_DOT.join(heading.facts), int(12 * figure.get_figwidth()))
            figure.suptitle(f"{heading.title}\n{facts}", x=0.01, ha="left", color=INK, fontsize=10)
        return figure
    rows = sample_rows(x, y, labels, member)
    fitting = _fitting(_tile(x.shape[2], x.shape[3], None)[2])
    is_square = len(rows) == 1 or not rows[0][0]
    if is_square or len({len(images) for _, images in rows}) == 1:
        most = max(1, MOST_IMAGES // len(rows))
        lines = _square(x[:MOST_IMAGES], fitting) if is_square else _lines(rows, fitting, most)
        shown = sum(len(images) for _, images in lines)
        return draw_sheet(
            [images for _, images in lines], [name for name, _ in lines], heading, note=_shown_of(shown, len(x))
        )
    are_members = all(name.startswith(_MEMBER) for name, _ in rows)
    notes = ["Below each image: the number of its member."] if are_members else []
    images = np.concatenate([own for _, own in rows])
    names = [name.removeprefix(_MEMBER) if are_members else name for name, own in rows for _ in own]
    if len(images) > MOST_IMAGES:  # of each row about the same share
        chosen = np.linspace(0, len(images) - 1, MOST_IMAGES).round().astype(int)
        images, names = images[chosen], [names[i] for i in chosen]
    across = min(fitting, max(1, math.ceil(math.sqrt(len(images)))))
    starts = range(0, len(images), across)
    below = [names[i : i + across] for i in starts]
    note = " ".join(filter(None, [*notes, _shown_of(len(images), len(x))]))
    return draw_sheet([images[i : i + across] for i in starts], heading=heading, below=below, note=note)


def _lines(rows: Sequence[tuple[str, np.ndarray]], fitting: int, most: int) -> list[tuple[str, np.ndarray]]:
    """Return rows of named images as lines of at most `fitting` images, the name of a row with its first line.

    Lines of a row are about equally long; of each row, at most `most` images are used.

    >>> [(name, len(images)) for name, images in _lines([("a", np.zeros(5)), ("b", np.zeros(5))], 4, 9)]
    [('a', 3), ('', 2), ('b', 3), ('', 2)]
    """
    lines: list[tuple[str, np.ndarray]] = []
    for name, images in rows:
        shown = images[:most]
        across = -(-len(shown) // -(-len(shown) // fitting))
        lines += [(name if i == 0 else "", shown[i : i + across]) for i in range(0, len(shown), across)]
    return lines


def _shown_of(shown: int, total: int) -> str:
    """Return a note if not all samples are drawn; empty otherwise.

    >>> _shown_of(64, 64), _shown_of(2500, 50_000)
    ('', 'Shown: 2,500 of 50,000.')
    """
    return "" if shown >= total else f"Shown: {shown:,} of {total:,}."


def sample_rows(
    x: np.ndarray, y: np.ndarray | None, labels: Sequence[str], member: np.ndarray | None = None
) -> list[tuple[str, np.ndarray]]:
    """Return rows of images with their names: by class if known, otherwise by member, otherwise as a square."""
    if y is not None and len(labels) and (y >= 0).any():
        rows = [(str(labels[k]), x[y == k]) for k in np.unique(y) if k >= 0]
    elif member is not None and len(np.unique(member)) > 1:
        rows = [(f"{_MEMBER}{k}", x[member == k]) for k in np.unique(member)]
    else:
        rows = _square(x)
    if len(rows) <= MOST_ROWS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)]


def _square(x: np.ndarray, widest: int = sys.maxsize) -> list[tuple[str, np.ndarray]]:
    """Arrange images in a square of unnamed rows, with at most `widest` images per row."""
    side = min(widest, max(1, math.ceil(math.sqrt(len(x)))))
    return [("", x[i : i + side]) for i in range(0, len(x), side)]


def draw_sheet(
    rows: Sequence[np.ndarray],
    names: Sequence[str] = (),
    heading: Heading | None = None,
    *,
    below: Sequence[Sequence[str]] = (),
    columns: int = 1,
    largest: int | None = None,
    note: str = "",
) -> Image.Image:
    """Draw a sheet: the heading, and rows of images [n, C, H, W] (uint8) with names at the left, in one column or more.

    Args:
        below: A text for each image of each row.
        largest: Pixels of the longer side to which larger images are shrunk.
        note: A line below the images.
    """
    each = -(-len(rows) // columns)
    cuts = [slice(i, i + each) for i in range(0, len(rows), each)]
    grids = [draw_grid(rows[cut], names[cut], below=below[cut], largest=largest) for cut in cuts]
    if heading is None and len(grids) == 1 and not note:
        return grids[0]
    big, small = font(_BIG, bold=True), font(_SMALL)
    widths = [grid.width + MARGIN for grid in grids]
    title = printable_line(heading.title) if heading else ""
    width = max(sum(widths) - MARGIN, math.ceil(big.getlength(title)), 320)
    lines = _wrapped(heading.facts, small, width) if heading else []
    top = MARGIN + (_BIG + 12 + len(lines) * (_SMALL + 7) + 10 if heading else 0)
    height = top + max(grid.height for grid in grids) + (2 * _SMALL if note else 0) + MARGIN
    sheet = Image.new("RGB", (width + 2 * MARGIN, height), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN + _BIG), title, INK, big, anchor="ls")
    for i, line in enumerate(lines):
        pen.text((MARGIN, MARGIN + _BIG + 12 + i * (_SMALL + 7) + _SMALL), line, SOFT, small, anchor="ls")
    for i, grid in enumerate(grids):
        sheet.paste(grid, (MARGIN + sum(widths[:i]), top))
    if note:
        pen.text((MARGIN, height - MARGIN), note, SOFT, small, anchor="ls")
    return sheet


def _wrapped(facts: Sequence[str], drawn_with: FreeTypeFont, width: float) -> list[str]:
    """Return the facts in as few lines as fit the width; no fact is broken."""
    lines: list[str] = []
    for fact in map(printable_line, facts):
        longer = f"{lines[-1]}{_DOT}{fact}" if lines else fact
        if lines and drawn_with.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines


def draw_grid(
    rows: Sequence[np.ndarray],
    names: Sequence[str] = (),
    *,
    below: Sequence[Sequence[str]] = (),
    background: str | None = "white",
    margin: int = 1,
    largest: int | None = None,
) -> Image.Image:
    """Draw rows of images [n, C, H, W] (uint8) below each other, enlarged without blur, with names at the left.

    Args:
        below: A text for each image of each row.
        background: None for a transparent background.
        largest: Pixels of the longer side to which larger images are shrunk.

    >>> draw_grid([np.zeros((3, 1, 8, 8), np.uint8)], ["7"]).height
    58
    """
    if not len(rows) or not any(len(row) for row in rows):
        raise ValueError("a grid needs at least one image")
    height, width = rows[0].shape[2:]
    scale, tile_h, tile_w = _tile(height, width, largest)
    blur = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    columns = min(max(len(row) for row in rows), _fitting(tile_w))
    letters, tiny = font(min(18, max(11, tile_h // 4))), font(11)
    short = [one_line(name, LONGEST) for name in names]
    left = math.ceil(max((letters.getlength(name) for name in short), default=0))
    left += 12 if left else 0
    step = tile_h + _GAP + (13 if below else 0)
    below_last = 0 if below else _GAP  # a text below an image reaches into the gap
    size = (2 * margin + left + columns * (tile_w + _GAP) - _GAP, 2 * margin + len(rows) * step - below_last)
    sheet = Image.new("RGB", size, background) if background else Image.new("RGBA", size)
    pen = ImageDraw.Draw(sheet)
    for i, row in enumerate(rows):
        top = margin + i * step
        if i < len(short) and short[i]:
            pen.text((margin + left - 12, top + tile_h / 2), short[i], INK, letters, anchor="rm")
        for j, image in enumerate(row[:columns]):
            tile = to_image(image).resize((tile_w, tile_h), blur)
            x = margin + left + j * (tile_w + _GAP)
            # a thin frame, so that bright images have an edge on a bright page
            pen.rectangle((x - 1, top - 1, x + tile_w, top + tile_h), outline=FRAME)
            sheet.paste(tile, (x, top))
            if below:
                pen.text(
                    (x + tile_w / 2, top + tile_h + 2),
                    fitted(one_line(below[i][j], LONGEST), tiny, tile_w),
                    SOFT,
                    tiny,
                    anchor="ma",
                )
    return sheet


def _tile(height: int, width: int, largest: int | None) -> tuple[float, int, int]:
    """Return how far images of this size are enlarged or shrunk, and the height and width at which they are drawn."""
    scale: float = max(1, round(TILE / max(height, width)))
    if largest is not None:
        scale = min(scale, largest / max(height, width))
    return scale, max(1, round(height * scale)), max(1, round(width * scale))


def _fitting(tile_w: int) -> int:
    """Return how many tiles fit side by side."""
    return max(1, WIDEST // (tile_w + _GAP))


def fitted(text: str, drawn_with: FreeTypeFont, width: float) -> str:
    """Return the text, shortened to a width in pixels, as one printable line: Pillow cannot measure several."""
    text = printable_line(text)
    if drawn_with.getlength(text) <= width:
        return text
    while text and drawn_with.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


@cache
def font(size: int, bold: bool = False) -> FreeTypeFont:
    """Return the font of all sheets, which comes with Matplotlib."""
    spec = find_spec("matplotlib")
    assert spec is not None and spec.origin is not None
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / name), size)
