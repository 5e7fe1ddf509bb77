"""Draw sheets of samples or data: grids of images below a title and a line of facts."""

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

TILE = 56  # approximate size in pixels to which small images are enlarged
WIDEST = 1600  # largest width of a grid, in pixels
MOST_IMAGES = 2_500  # largest number of images in a picture of samples
LONGEST = 24  # longer names of rows are cut
MARGIN = 28  # width of the margin around a sheet, in pixels
_GAP = 5  # pixels between tiles, wide enough to keep the strokes of neighbouring images apart
_BIG, _SMALL = 26, 15  # font sizes of the title and of the facts
_MEMBER = "member "  # the names of rows that show one member begin with this
_DOT = "  ·  "  # separates two facts


@dataclass(frozen=True)
class Heading:
    """The text above a picture: a title, and facts that are joined in one line or more."""

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
    """Draw samples: images as a grid, points next to those of the data, or rows of a table over those of the data.

    If there are equally many images of each class (or of each member, if classes are unknown), each class has its own
    row of the grid, or several if it has many images. Otherwise the name of the class, or the number of the member, is
    written below each image. A note states how many images are shown if not all are.

    Args:
        x: Images, uint8 [n, C, H, W], or points or rows of a table, float [n, d].
        y: The label of each sample, [n]; -1: none.
        labels: The names of the labels.
        member: The member that generated each sample, [n].
        data: Real points or rows [m, d].
        view: Names of columns, and rows projected to a plane, if x are rows of a table.
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
    if len(images) > MOST_IMAGES:  # evenly chosen, so that about the same share of each row is shown
        chosen = np.linspace(0, len(images) - 1, MOST_IMAGES).round().astype(int)
        images, names = images[chosen], [names[i] for i in chosen]
    across = min(fitting, max(1, math.ceil(math.sqrt(len(images)))))
    starts = range(0, len(images), across)
    below = [names[i : i + across] for i in starts]
    note = " ".join(filter(None, [*notes, _shown_of(len(images), len(x))]))
    return draw_sheet([images[i : i + across] for i in starts], heading=heading, below=below, note=note)


def _lines(rows: Sequence[tuple[str, np.ndarray]], fitting: int, most: int) -> list[tuple[str, np.ndarray]]:
    """Break rows of named images into lines of at most `fitting` images; only the first line of a row has its name.

    The lines of a row are about equally long. At most `most` images of each row are used.

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
    """Return a note that only some samples are drawn; empty if all are.

    >>> _shown_of(64, 64), _shown_of(2500, 50_000)
    ('', 'Shown: 2,500 of 50,000.')
    """
    return "" if shown >= total else f"Shown: {shown:,} of {total:,}."


def sample_rows(
    x: np.ndarray, y: np.ndarray | None, labels: Sequence[str], member: np.ndarray | None = None
) -> list[tuple[str, np.ndarray]]:
    """Group images [n, C, H, W] into named rows, at most MOST_ROWS.

    There is a row for each class if classes are known, otherwise for each member if there are several; otherwise the
    images form a square of rows without names.
    """
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
    """Arrange images [n, …] in a square of rows with empty names, with at most `widest` images per row."""
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
    """Draw a sheet: a heading, and rows of images, each uint8 [n, C, H, W], with the name of each row at its left.

    Args:
        below: A text below each image of each row.
        columns: The number of grids, side by side, to which the rows are distributed.
        largest: Larger images are shrunk until their longer side has this many pixels.
        note: A line below all images.
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
    """Join facts to as few lines as possible, each at most `width` pixels wide; a fact is never split."""
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
    """Draw rows of images, each uint8 [n, C, H, W], below each other, with the name of each row at its left.

    Small images are enlarged without interpolation.

    Args:
        below: A text below each image of each row.
        background: The colour of the background; None: transparent.
        margin: Pixels around the grid.
        largest: Larger images are shrunk until their longer side has this many pixels.

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
    """Return the factor by which images of this size are scaled, and the height and width in pixels of the result."""
    scale: float = max(1, round(TILE / max(height, width)))
    if largest is not None:
        scale = min(scale, largest / max(height, width))
    return scale, max(1, round(height * scale)), max(1, round(width * scale))


def _fitting(tile_w: int) -> int:
    """Return how many tiles of this width in pixels fit side by side into a grid."""
    return max(1, WIDEST // (tile_w + _GAP))


def fitted(text: str, drawn_with: FreeTypeFont, width: float) -> str:
    """Return the text as one printable line, cut so that it is at most `width` pixels wide in a font."""
    text = printable_line(text)
    if drawn_with.getlength(text) <= width:
        return text
    while text and drawn_with.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


@cache
def font(size: int, bold: bool = False) -> FreeTypeFont:
    """Return the font of all sheets, DejaVu Sans, from the files of Matplotlib."""
    spec = find_spec("matplotlib")
    assert spec is not None and spec.origin is not None
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / name), size)
