"""Describe a data set: its classes, counts, sizes and range as text or JSON, and a contact sheet with a row per class."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ganherd.data import duplicates
from ganherd.data.arrays import Array
from ganherd.data.dataset import Dataset, load
from ganherd.data.keyed_random import shuffle
from ganherd.recipe import schema
from ganherd.util.errors import UserError, counted
from ganherd.util.files import JsonObject, atomic_write
from ganherd.util.text import note_lines, printable_line, text_table
from ganherd.viz.pictures import DATA, INK, SOFT, new_figure, png
from ganherd.viz.sheets import Heading, draw_samples, draw_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ganherd.viz.pictures import Picture

MOST, MOST_COLUMNS = 100, 40  # most classes and most columns of a table that are shown
UNEQUAL = 4  # ratio of the largest class to the smallest from which a note is given
# Layouts of the contact sheet: (number of classes up to which it is used, columns of the sheet, images of a class)
_LAYOUTS = ((12, 1, 16), (36, 2, 10), (MOST, 4, 6))
_STATISTICS = ("least", "most", "mean", "std")  # shown for each column of a table
_UNLABELLED = 10, 20  # without labels: rows of the contact sheet, and images in a row


def inspect(settings: schema.DataConfig) -> JsonObject:
    """Load the data that a recipe names, and return its description as plain values for JSON.

    >>> inspect(schema.DataConfig(source="ring8", points=80))["classes"][0]
    {'name': '0', 'train': 10, 'held_out': 2}
    """
    return describe(load(settings))


def describe(dataset: Dataset) -> JsonObject:
    """Return the description of a data set as plain values for JSON."""
    train, held = (np.bincount(y[y >= 0], minlength=len(dataset.labels)) for y in (dataset.y, dataset.y_test))
    low, high, mean, std = _spread(dataset.x)
    copies = duplicates.find(dataset.x, dataset.x_test)
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "shape": list(dataset.shape),
        "total": len(dataset.x) + len(dataset.x_test),
        "train": len(dataset.x),
        "held_out": len(dataset.x_test),
        "split": dataset.split,
        "holdout": dataset.holdout,
        "classes": [
            {"name": name, "train": int(train[k]), "held_out": int(held[k])} for k, name in enumerate(dataset.labels)
        ],
        "range": [_number(low), _number(high)],
        "source_range": list(dataset.source_range) if dataset.source_range else None,
        "mean": round(mean, 4),
        "std": round(std, 4),
        "columns": _columns(dataset),
        "offset": dataset.offset,
        "scale": dataset.scale,
        "digest": dataset.digest,
        "skipped": dataset.skipped,
        "copies": copies.copies,
        "held_out_and_trained_on": copies.across,
        "notes": list(
            dict.fromkeys(
                [
                    *dataset.notes,
                    *(copies.notes(dataset.kind) if dataset.is_image else []),
                    *_imbalance(dataset.labels, train, dataset.kind),
                ]
            )
        ),
    }


def _columns(dataset: Dataset) -> list[JsonObject]:
    """Return name, range, mean and standard deviation of each column of a table; empty for images and points."""
    if dataset.kind != "rows":
        return []
    x = dataset.x
    each = zip(
        dataset.columns, x.min(0), x.max(0), x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64), strict=True
    )
    return [dict(zip(("name", *_STATISTICS), (name, *map(_number, values)), strict=True)) for name, *values in each]


def _imbalance(labels: Sequence[str], counts: Array, kind: str) -> list[str]:
    """Return a list with a note if a class has far more training rows than another, otherwise an empty list.

    Args:
        labels: The names of the classes.
        counts: int64 [classes], the number of training rows of each.
        kind: What the rows are called.

    >>> _imbalance(["cat", "dog"], np.array([90, 20]), "images")
    ['classes are unequal: cat has 90 images to train on, dog has 20; small classes are learned less well']
    """
    if len(labels) < 2 or counts.max() < UNEQUAL * counts.min():
        return []
    most, least = int(counts.argmax()), int(counts.argmin())
    numbers = f"{labels[most]} has {counts[most]:,} {kind} to train on, {labels[least]} has {counts[least]:,}"
    return [f"classes are unequal: {numbers}; small classes are learned less well"]


def text(facts: Mapping[str, Any]) -> str:
    """Return a description, the result of `describe`, as text for a terminal."""
    shape = "×".join(str(size) for size in facts["shape"])
    lines = [
        f"{facts['name']}: {counted(facts['total'], facts['kind'])} of {shape}{' columns' if facts['columns'] else ''}",
        f"{facts['split']}: {facts['train']:,} to train on, {facts['held_out']:,} held out",
    ]
    if facts["columns"]:
        shown = facts["columns"][:MOST_COLUMNS]
        rows = [(each["name"], *(f"{each[key]:.4g}" for key in _STATISTICS)) for each in shown]
        numbers = range(1, 1 + len(_STATISTICS))
        lines += [f"  {line}" for line in text_table([("column", *_STATISTICS), *rows], numbers)]
        if more := len(facts["columns"]) - len(shown):
            lines.append(f"  and {counted(more, 'columns')} more")
    else:
        lines.append(f"{_range(facts)}, mean {facts['mean']}, standard deviation {facts['std']}")
    if classes := facts["classes"]:
        width = max(len(row["name"]) for row in classes)
        its = "their" if len(classes) > 1 else "its"
        lines.append(f"{counted(len(classes), 'classes')}, with all {its} {facts['kind']} (to train on / held out):")
        for row in classes:
            total = row["train"] + row["held_out"]
            lines.append(f"  {row['name']:<{width}}  {total:>7,} ({row['train']:,} / {row['held_out']:,})")
    else:
        lines.append("no labels")
    lines += note_lines(facts["notes"])
    if "contact_sheet" in facts:
        lines.append(f"contact sheet: {facts['contact_sheet']}")
    return "\n".join(map(printable_line, lines))


def _range(facts: Mapping[str, Any]) -> str:
    low, high = facts["range"]
    if not facts.get("source_range"):
        return f"range {low} to {high}"
    was = facts["source_range"]
    return f"range {was[0]:.4g} to {was[1]:.4g}, kept as bytes {low} to {high}"


def _number(value: Any) -> int | float:
    return int(value) if np.issubdtype(type(value), np.integer) else round(float(value), 6)


def _spread(x: Any) -> tuple[Any, Any, float, float]:
    """Return minimum, maximum, mean and standard deviation of all values.

    For bytes a histogram is counted block by block, so that data on the disk is read once and never held whole.
    """
    if x.dtype != np.uint8:
        return x.min(), x.max(), float(x.mean(dtype=np.float64)), float(x.std(dtype=np.float64))
    rows = max(1, len(x) * 2**22 // max(1, x.size))  # so that a block has about 4 MiB
    counts = np.zeros(256, np.int64)
    for i in range(0, len(x), rows):
        counts += np.bincount(x[i : i + rows].reshape(-1), minlength=256)
    share, seen = counts / x.size, np.flatnonzero(counts)
    mean = float((share * np.arange(256)).sum())
    return seen[0], seen[-1], mean, float(np.sqrt((share * (np.arange(256) - mean) ** 2).sum()))


# --- the contact sheet ----------------------------------------------------------------------------------------------


def contact_sheet(dataset: Dataset, path: str | os.PathLike[str]) -> Path:
    """Draw a data set (images by class, points, or columns of a table) as a PNG file, and return its path."""
    target = Path(path)
    draw: dict[str, Callable[[Dataset], Picture]] = {"images": _images, "points": _points, "rows": _rows}
    picture = draw[dataset.kind](dataset)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(target, png(picture), sync=False)
    except OSError as error:
        raise UserError(f"the contact sheet cannot be written to {target}: {error.strerror}.") from None
    return target


def _summary(dataset: Dataset) -> str:
    """Return the facts about the data set (see `_facts`) as one line."""
    return "  ·  ".join(_facts(dataset))


def _facts(dataset: Dataset) -> list[str]:
    """Return short texts about the data set: what it is, its classes, its number of rows, and their split."""
    if dataset.is_image:
        channels, height, width = dataset.shape
        what = f"{width} × {height} {'grey' if channels == 1 else 'RGB'}"
    else:
        what = "2-D points" if dataset.kind == "points" else counted(dataset.shape[0], "columns")
    train, held = len(dataset.x), len(dataset.x_test)
    classes = counted(len(dataset.labels), "classes") if dataset.labels else "no labels"
    total = counted(train + held, dataset.kind)
    return [what, classes, total, f"{dataset.split}: {train:,} to train on, {held:,} held out"]


def _images(dataset: Dataset) -> Image.Image:
    """Return a sheet of images with a title and a row for each class; rows of any images if there are no labels."""
    present = [k for k in range(len(dataset.labels)) if (dataset.y == k).any()]
    shown = present[:MOST]
    if shown:
        columns, across = next((count, n) for most, count, n in _LAYOUTS if len(shown) <= most)
        names = [_name(dataset, k) for k in shown]
        rows = [_some(dataset, np.flatnonzero(dataset.y == k), k, across) for k in shown]
    else:
        columns, names, (most, across) = 1, [], _UNLABELLED
        images = _some(dataset, np.arange(len(dataset.x)), -1, most * across)
        rows = [images[i : i + across] for i in range(0, len(images), across)]
    more = len(present) - len(shown)
    note = f"and {counted(more, 'more classes')}" if more else ""
    heading = Heading(dataset.name, _facts(dataset))
    return draw_sheet(rows, names, heading, columns=columns, largest=64, note=note)


def _name(dataset: Dataset, k: int) -> str:
    """Return the shortened name of class k with the number of its images, for the contact sheet."""
    label, count = dataset.labels[k], np.count_nonzero(dataset.y == k) + np.count_nonzero(dataset.y_test == k)
    return f"{label if len(label) <= 15 else label[:14] + '…'} ({count:,})"


def _some(dataset: Dataset, rows: Array, k: int, most: int) -> Array:
    """Return at most `most` of the images in these rows, chosen at random but the same in every call.

    `k`, the number of the class (-1: none), determines the random choice.
    """
    return np.asarray(dataset.x[rows[shuffle(len(rows), "sheet", k + 1)[:most]]])


def _rows(dataset: Dataset) -> Picture:
    """Return a figure of the training rows: the distribution of each column, and all rows in a plane."""
    return draw_samples(
        dataset.x[:0],
        data=dataset.x,
        heading=Heading(dataset.name, _facts(dataset)),
        view=dataset.view_of(dataset.x[:0]),
    )


def _points(dataset: Dataset) -> Figure:
    """Return a figure of the training points, coloured and named by class, with the held-out ones on top of them."""
    from matplotlib import colormaps
    from matplotlib.patheffects import withStroke

    figure, (axes,) = new_figure(9, 9.4)
    classes = len(dataset.labels)
    colours: Any = DATA
    if classes and (dataset.y >= 0).any():
        hues = colormaps["hsv"](np.linspace(0, 0.94, classes))[:, :3] * 0.82  # darker, for a white background
        order = np.arange(classes) * 7 % classes if classes % 7 else np.arange(classes)  # neighbours differ
        colours = np.where((dataset.y >= 0)[:, None], hues[order[dataset.y]], 0.6)
    dot = float(np.clip(9000 / len(dataset.x), 4, 22))
    axes.scatter(dataset.x[:, 0], dataset.x[:, 1], s=dot, c=colours, alpha=0.7, linewidths=0, label="to train on")
    axes.scatter(dataset.x_test[:, 0], dataset.x_test[:, 1], s=dot / 3, c=INK, linewidths=0, label="held out")
    style: Any = {
        "ha": "center",
        "weight": "bold",
        "color": INK,
        "path_effects": [withStroke(linewidth=3, foreground="white")],
    }
    for k in range(min(classes, MOST)):
        if (rows := dataset.y == k).any():
            x, y = dataset.x[rows].mean(axis=0)
            axes.text(x, y + 3 * dataset.x[rows, 1].std(), dataset.labels[k], **style)  # above its cluster
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    axes.set_title(f"{dataset.name}: {_summary(dataset)}", color=INK, fontsize=10.5, loc="left")
    place: Any = {"loc": "upper right", "bbox_to_anchor": (1, -0.03)}  # below the axes, never on the points
    axes.legend(frameon=False, labelcolor=SOFT, markerscale=2, ncols=2, **place)
    return figure
