"""Render the sections with pictures: generated samples next to real data, and maps of samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from markupsafe import Markup

from ganherd.data.keyed_random import shuffle
from ganherd.report.gather import PER_ROW, RunStory
from ganherd.report.templating import number, render, svg
from ganherd.util.files import JsonObject
from ganherd.viz import pictures, sheets
from ganherd.viz.row_sheets import draw_rows

_MOST_PIXELS = 900_000  # of all images of a section together


def samples(story: RunStory) -> Markup:
    """Render generated samples next to real ones: rows of images, points, or rows of tables."""
    x, real = story.generated, story.real
    if x is None:
        return _last_picture(story)
    where = f"Drawn from the mixture of step {number(story.mixture_step)}, seed 0, not chosen"
    where += f"; the first of {story.replicas} replicas." if story.replicas > 1 else "."
    if x.ndim == 2:
        if story.row_view is not None:
            picture = svg(draw_rows(x, story.row_view, real), "rows")
            return render("samples", caption=f"{where} Grey: real rows; blue: generated.", whole=picture, rows=[])
        figures = [svg(pictures.draw_points(x, real), "points")]
        if real is not None:
            figures.append(svg(pictures.draw_points(np.empty((0, 2)), real), "data"))
        return render("samples", caption=where, whole=None, figures=figures, rows=[])
    rows = sheets.sample_rows(x, story.generated_y, story.labels, story.generated_member)
    rows = [(name, images[:PER_ROW]) for name, images in rows]
    real_rows = _real_rows(story, rows)
    widest = max(len(images) for images in (*(images for _, images in rows), *real_rows))
    side = _side(2 * len(rows) * widest)
    strips = []
    for i, (name, images) in enumerate(rows):
        other = real_rows[i] if i < len(real_rows) and len(real_rows[i]) else None
        strips.append((name, _strip(images, widest, side), None if other is None else _strip(other, widest, side)))
    shown = ""
    if _are_classes(story):
        shown = f" {len(rows)} of {len(story.labels)} classes are shown." if len(rows) < len(story.labels) else ""
    elif rows[0][0]:
        shown = " A row for each member that made some of them; next to it, any of the real data."
    return render("samples", caption=where + shown, rows=strips, has_real=bool(real_rows))


def strips(story: RunStory, per_row: int) -> JsonObject:
    """Return some generated images of each row as PNGs, or points as a figure; both are empty without a mixture."""
    x = story.generated
    if x is None:
        return {"strips": [], "figures": []}
    if x.ndim == 2:
        return {"strips": [], "figures": [svg(pictures.draw_points(x, story.real), f"points-{story.name}")]}
    rows = sheets.sample_rows(x, story.generated_y, story.labels, story.generated_member)
    side = _side(2 * len(rows) * per_row)
    return {"strips": [(name, _strip(images[:per_row], per_row, side)) for name, images in rows], "figures": []}


def _last_picture(story: RunStory) -> Markup:
    """Render the last picture of the training, if there is no mixture to draw samples from."""
    rows, points = [], None
    if story.real is not None and story.real.ndim == 2 and story.row_view is not None:
        points = svg(draw_rows(story.real[:0], story.row_view, story.real), "data")
    elif story.real is not None and story.real.ndim == 2:
        points = svg(pictures.draw_points(np.empty((0, 2)), story.real), "data")
    elif story.real is not None:
        named = sheets.sample_rows(story.real, story.real_y, story.labels)
        widest = max(len(images) for _, images in named)
        side = _side(len(named) * widest)
        rows = [(name, _strip(images, widest, side)) for name, images in named]
    png, name = story.sample_png, story.sample_name
    return render("last_picture", png=png, name=name, command=story.sample_command, real_rows=rows, real_points=points)


_TITLES = {
    "map": "Data and samples",
    "neighbours": "Nearest training images",
    "map-classes": "By class",
    "coverage": "Modes",
}


def maps(story: RunStory) -> Markup:
    """Render the pictures of the run folder, except the class histogram, which the section of the classes shows."""
    by_name = {one.name: one for one in story.pictures}
    shown = [
        (title, by_name[name], "map wide" if name in ("map-classes", "coverage") else "map")
        for name, title in _TITLES.items()
        if name in by_name
    ]
    return render("maps", shown=shown) if shown else Markup()


def _are_classes(story: RunStory) -> bool:
    """Return whether each row of generated images shows one class (otherwise: one member, or any images)."""
    return bool(story.labels) and story.generated_y is not None and bool((story.generated_y >= 0).any())


def _real_rows(story: RunStory, rows: list[tuple[str, np.ndarray]]) -> list[np.ndarray]:
    """Return real images for each row of generated ones: of the same class if rows are classes, otherwise any.

    Return an empty list if there are no real images.
    """
    real, y = story.real, story.real_y
    if real is None or real.ndim != 4:
        return []
    if _are_classes(story) and y is not None:
        widest = max(len(images) for _, images in rows)
        by_name = {name: real[y == k] for k, name in enumerate(story.labels)}
        return [by_name[name][:widest] for name, _ in rows]
    real = real[shuffle(len(real), "real rows of a report")]  # shuffled, because they are sorted by class
    ends = np.cumsum([len(images) for _, images in rows])
    return [real[end - len(images) : end] for end, (_, images) in zip(ends, rows, strict=True)]


def _side(images: int) -> int:
    """Return the largest side in pixels that each of `images` images of a section may have, from 32 to 128.

    >>> _side(240), _side(1200), _side(20)
    (61, 32, 128)
    """
    return max(32, min(128, math.isqrt(_MOST_PIXELS // images)))


def _strip(images: np.ndarray, columns: int, side: int) -> bytes:
    """Return a row of images as a PNG.

    It is as wide as a row of `columns` images, so that the page scales all rows alike.

    Args:
        side: Larger images are shrunk until their longer side has this many pixels.
    """
    settings: Any = {"background": None, "margin": 1, "largest": side}
    drawn = sheets.draw_grid([images], **settings)
    if len(images) < columns:
        full = sheets.draw_grid([np.repeat(images[:1], columns, 0)], **settings).size
        drawn = drawn.crop((0, 0, *full))  # the added area is transparent
    return pictures.png(drawn)
