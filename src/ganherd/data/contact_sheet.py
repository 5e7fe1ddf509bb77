"""Draw a contact sheet of a data set: one row of images per class, or the points of a toy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.data.arrays import Array
from ganherd.data.dataset import Dataset
from ganherd.data.keyed import shuffle
from ganherd.util.errors import UserError, counted
from ganherd.util.files import replacing

INK, SOFT, LINE, PAPER = "#1c2530", "#75808c", "#dde3e8", "#ffffff"
MOST = 100  # classes shown
MARGIN, GAP = 36, 4  # pixels


def contact_sheet(dataset: Dataset, path: str | os.PathLike[str]) -> Path:
    """Write the sheet as a PNG and return its path."""
    target = Path(path)
    picture = _images(dataset) if dataset.is_image else _points(dataset)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            picture.save(temporary, format="PNG")
    except OSError as error:
        raise UserError(f"the contact sheet cannot be written to {target}: {error.strerror}.") from None
    return target


def _summary(dataset: Dataset) -> str:
    if dataset.is_image:
        channels, height, width = dataset.shape
        what = f"{width} × {height} {'grey' if channels == 1 else 'RGB'}"
    else:
        what = "2-D points"
    train, held = len(dataset.x), len(dataset.x_test)
    classes = counted(len(dataset.labels), "classes") if dataset.labels else "no labels"
    total = counted(train + held, dataset.kind)
    return "  ·  ".join([what, classes, total, f"{dataset.split}: {train:,} to train on, {held:,} held out"])


# --- images ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """The layout of the page: columns (`blocks`) of rows, each with a name and `across` images."""

    blocks: int
    rows: int
    across: int
    thumb: int  # pixels
    text: int  # width of the names


def _images(dataset: Dataset) -> Any:
    from PIL import Image, ImageDraw

    classes = list(range(min(len(dataset.labels), MOST))) or [-1]
    big, bold, small = _font(30, bold=True), _font(17, bold=True), _font(14)
    plan = _plan(dataset, classes, bold)
    block = plan.text + plan.across * (plan.thumb + GAP)
    top = MARGIN + 84
    between = 28  # pixels between blocks
    more = len(dataset.labels) - len(classes)
    title_width = max(big.getlength(dataset.name), _font(17).getlength(_summary(dataset)))
    width = max(2 * MARGIN + plan.blocks * block + (plan.blocks - 1) * between, 2 * MARGIN + round(title_width))
    height = top + plan.rows * (plan.thumb + GAP) + MARGIN + (30 if more > 0 else 0)
    page = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN - 8), _fit(dataset.name, big, width - 2 * MARGIN), INK, font=big)
    pen.text((MARGIN, MARGIN + 36), _summary(dataset), SOFT, font=_font(17))
    for place, k in enumerate(classes):
        left = MARGIN + place // plan.rows * (block + between)
        y = top + place % plan.rows * (plan.thumb + GAP)
        rows = np.flatnonzero(dataset.y == k) if k >= 0 else np.arange(len(dataset.x))
        if k >= 0:
            middle, count = y + plan.thumb // 2, f"{len(rows) + np.count_nonzero(dataset.y_test == k):,}"
            if plan.thumb >= 48:  # the count below the name
                pen.text((left, middle - 1), _fit(dataset.labels[k], bold, plan.text - 16), INK, font=bold, anchor="ls")
                pen.text((left, middle + 4), count, SOFT, font=small, anchor="lt")
            else:  # next to the name
                end, room = left + plan.text - 12, plan.text - 24 - small.getlength(count)
                pen.text((left, middle + 6), _fit(dataset.labels[k], bold, room), INK, font=bold, anchor="ls")
                pen.text((end, middle + 6), count, SOFT, font=small, anchor="rs")
        shown = rows[shuffle(len(rows), "sheet", k + 1)[: plan.across * (plan.rows if k < 0 else 1)]]
        for i, row in enumerate(shown):
            across, down = (i % plan.across, i // plan.across)
            spot = (left + plan.text + across * (plan.thumb + GAP), y + down * (plan.thumb + GAP))
            pen.rectangle((spot[0] - 1, spot[1] - 1, spot[0] + plan.thumb, spot[1] + plan.thumb), outline=LINE)
            page.paste(_thumb(dataset.x[row], plan.thumb), spot)
    if more > 0:
        pen.text((MARGIN, height - MARGIN), f"and {more:,} more classes", SOFT, font=_font(17), anchor="ls")
    return page


def _plan(dataset: Dataset, classes: list[int], font: Any) -> _Plan:
    side = max(dataset.shape[1:])
    if classes == [-1]:
        across = 20
        return _Plan(1, min(10, -(-len(dataset.x) // across)), across, _thumb_side(side, 56), 0)
    blocks = 1 if len(classes) <= 12 else 2 if len(classes) <= 36 else 4
    across, target = {1: (16, 56), 2: (10, 48), 4: (6, 40)}[blocks]
    longest = max(font.getlength(dataset.labels[k]) for k in classes)
    thumb = _thumb_side(side, target)
    text = round(min(max(longest, 56), 190)) + (18 if thumb >= 48 else 72)
    return _Plan(blocks, -(-len(classes) // blocks), across, thumb, text)


def _thumb_side(side: int, target: int) -> int:
    """Return a small image enlarged by a whole factor, so that its pixels stay even."""
    return side * max(1, round(target / side)) if side <= target else max(target, min(side, 64))


def _thumb(image: Array, side: int) -> Any:
    from PIL import Image

    planes = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    picture = Image.fromarray(np.ascontiguousarray(planes)).convert("RGB")
    ratio = side / max(picture.size)
    size = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
    how = Image.Resampling.NEAREST if ratio >= 1 else Image.Resampling.LANCZOS
    card = Image.new("RGB", (side, side), PAPER)
    card.paste(picture.resize(size, how), ((side - size[0]) // 2, (side - size[1]) // 2))
    return card


def _fit(text: str, font: Any, width: float) -> str:
    """Return the text, shortened with an ellipsis if it is too long."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _font(size: int, bold: bool = False) -> Any:
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(os.path.join(matplotlib.get_data_path(), "fonts", "ttf", name), size)


# --- points ---------------------------------------------------------------------------------------------------------


def _points(dataset: Dataset) -> Any:
    import io

    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke
    from PIL import Image

    figure = Figure(figsize=(9, 9.4), dpi=130, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.07, 0.05, 0.9, 0.86))
    classes = len(dataset.labels)
    if classes and (dataset.y >= 0).any():
        hues = colormaps["hsv"](np.linspace(0, 0.94, classes))[:, :3] * 0.82  # darker, for a white background
        order = np.arange(classes) * 7 % classes if classes % 7 else np.arange(classes)  # neighbours differ
        colours: Any = np.where((dataset.y >= 0)[:, None], hues[order[dataset.y]], 0.6)
    else:
        colours = "#2f6db3"
    dot = float(np.clip(9000 / len(dataset.x), 4, 22))
    axes.scatter(dataset.x[:, 0], dataset.x[:, 1], s=dot, c=colours, alpha=0.7, linewidths=0)
    axes.scatter(dataset.x_test[:, 0], dataset.x_test[:, 1], s=dot / 3, c=INK, linewidths=0)
    halo = [withStroke(linewidth=3, foreground=PAPER)]
    for k in range(min(classes, MOST)):
        if (rows := dataset.y == k).any():
            x, y = dataset.x[rows].mean(axis=0)
            y += 2.5 * dataset.x[rows, 1].std()  # above its cluster
            axes.annotate(
                dataset.labels[k],
                (x, y),
                (0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=INK,
                weight="bold",
                fontsize=10,
                path_effects=halo,
            )
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    dots = [("to train on", 7, SOFT), ("held out", 4, INK)]
    handles = [Line2D([], [], ls="", marker="o", mew=0, ms=size, color=hue, label=text) for text, size, hue in dots]
    place: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 2}  # next to the title, never on the points
    axes.legend(handles=handles, frameon=False, labelcolor=SOFT, handletextpad=0.2, columnspacing=1.2, **place)
    figure.text(0.07, 0.958, dataset.name, fontsize=18, weight="bold", color=INK)
    figure.text(0.07, 0.93, _summary(dataset), fontsize=10.5, color=SOFT)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer)
