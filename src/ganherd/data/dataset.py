"""Load a data set by name or path, as arrays of training rows and of held-out rows, which are never trained on.

A row is one image, one point (two numbers), or one line of a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from ganherd.data import duplicates
from ganherd.data.arrays import Array, RawData, TidyData, tidy
from ganherd.data.keyed_random import shuffle
from ganherd.data.readers import in_memory
from ganherd.data.readers.class_folders import resized
from ganherd.data.readers.named import read_named, read_path
from ganherd.data.samples.open_samples import is_sample_source, open_samples
from ganherd.data.samples.read_samples import read_samples
from ganherd.data.shards import shards
from ganherd.data.units import Units, column_units, comparable, main_plane, projected, span_units
from ganherd.recipe import schema
from ganherd.recipe.plugins.recipe_plugins import is_named_source
from ganherd.util.errors import UserError, counted, few
from ganherd.util.paths import expanded
from ganherd.util.registry import DATA_SOURCES
from ganherd.util.text import did_you_mean
from ganherd.viz.row_sheets import RowView


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training rows, held-out rows and class names.

    Nets get (x - offset) / scale, which are called model units (`units.to_model`).
    """

    name: str
    # Images uint8 [n, C, H, W], or points and rows float32 [n, d]. Images of a prepared folder are `ShardRows`, which
    # are read from the disk when they are indexed.
    x: Array
    y: Array  # int64 [n], index into labels; -1: no label
    x_test: Array  # the held-out rows, like x
    y_test: Array
    labels: tuple[str, ...]  # names of the classes; (): no labels
    offset: Units  # one number; for rows of a table the mean of each column
    scale: Units  # one number; for rows of a table the standard deviation of each column (0: constant)
    notes: tuple[str, ...] = ()  # notes for the user: skipped files, converted ranges
    skipped: int = 0  # files of a folder that are not images
    holdout: float | None = None  # the fraction that was held out; None: the source has its own held-out rows
    source_range: tuple[float, float] | None = None  # range of the source's values, if floats were converted to bytes
    columns: tuple[str, ...] = ()  # names of the columns of a table, or of points that have names

    @property
    def split(self) -> str:
        """How rows were divided into training rows and held-out rows, as words for messages."""
        return "as the source has it" if self.holdout is None else f"with data.holdout {self.holdout:g}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row: (C, H, W), (2,) for points, or (d,) for rows."""
        return tuple(int(n) for n in self.x.shape[1:])

    @property
    def is_image(self) -> bool:
        return self.x.ndim == 4

    @property
    def kind(self) -> str:
        """What the data consists of: `images`, `points` (two columns), or `rows` (any other number of columns)."""
        return "images" if self.is_image else "points" if self.shape == (2,) else "rows"

    @cached_property
    def plane(self) -> tuple[tuple[float, ...], ...]:
        """The two directions [2, d], in model units, onto which pictures project rows; () for images and points."""
        return main_plane(comparable(self.x, self)) if self.kind == "rows" else ()

    def view_of(self, x: Array) -> RowView | None:
        """Return what a picture of rows x [n, d] next to the data needs: names of columns, and rows and data as points.

        None for images and points.
        """
        if not self.plane:
            return None
        points, own = (projected(rows, self, self.plane) for rows in (x, self.x))
        return RowView(self.columns, points, own)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of rows, labels and class names of both splits, in hexadecimal."""
        total = hashlib.sha256()
        for array in (self.x, self.y, self.x_test, self.y_test):
            total.update(f"{array.dtype.str}{array.shape}".encode())
            known = getattr(array, "digest", None)  # `ShardRows` know a digest without being read
            total.update(known.encode() if known else np.ascontiguousarray(array).data)
        total.update("\0".join(self.labels).encode())
        if self.kind == "rows":
            total.update("\0".join(self.columns).encode())
        return total.hexdigest()


def load(settings: schema.DataConfig) -> Dataset:
    """Load the data set that the section `data` of a recipe names.

    Raises:
        UserError: There is no such data, it cannot be read, or a setting does not fit it.

    >>> digits = load(schema.DataConfig(source="digits"))
    >>> digits.shape, digits.labels[7], len(digits.x) + len(digits.x_test)
    ((1, 8, 8), '7', 1797)
    """
    path = expanded(settings.source)
    is_named = is_named_source(settings.source)
    if not is_named and shards.is_prepared(path):
        return _prepared(path, settings)
    raw, name = _read(settings)
    data = tidy(raw, name)
    if data.x.ndim == 4:
        if settings.points is not None:
            raise UserError(f"data.points is for points and rows, and {name} holds images; leave data.points out.")
        if settings.size is not None:
            data = _resize(data, settings.size)
    elif settings.size is not None:
        raise UserError(f"data.size is for images, and {name} holds none; leave data.size out.")
    notes = list(data.notes)
    draws_points = is_named and DATA_SOURCES[settings.source].draws_points
    holdout = settings.holdout if draws_points else None
    if data.x_test is None or data.y_test is None:
        holdout = settings.holdout
        held = hold_out(data.y, holdout, notes, _split_numbers(data.labels, settings))
        data = replace(data, x=data.x[~held], y=data.y[~held], x_test=data.x[held], y_test=data.y[held])
    if data.x.ndim == 4:
        notes += duplicates.find(data.x, data.x[:0] if data.x_test is None else data.x_test).notes("images")
    if settings.points is not None and not draws_points:
        data = _keep(data, settings.points, name)
    assert data.x_test is not None and data.y_test is not None
    offset, scale = _units(data.x)
    if isinstance(scale, tuple) and 0.0 in scale:
        names = [column for column, value in zip(data.columns, scale, strict=True) if not value]
        notes.append(f"{counted(len(names), 'columns')} never changed and will be copied into samples: {few(names, 5)}")
    rows = (data.x, data.y, data.x_test, data.y_test)
    return Dataset(
        name,
        *rows,
        data.labels,
        offset,
        scale,
        tuple(notes),
        data.skipped,
        holdout,
        data.source_range,
        data.columns,
    )


def _split_numbers(labels: Sequence[str], settings: schema.DataConfig) -> list[int]:
    """Return the number of each class by which its held-out rows are chosen: its own, or that in `data.held_out_as`."""
    return [settings.held_out_as.get(label, number) for number, label in enumerate(labels)]


def hold_out(y: Array, fraction: float, notes: list[str], numbers: Sequence[int] = ()) -> Array:
    """Return a mask bool [n], True for rows to hold out: a fraction of each class, the same rows in every run.

    At least one row of each class that has several is held out, and never all of them.

    Args:
        y: int64 [n], the class of each row; -1: no label.
        fraction: The fraction to hold out; 0: none.
        notes: Notes for the user, to which one is added if no rows can be held out.
        numbers: For each class the number that chooses its rows; empty: its own.

    >>> int(hold_out(np.array([0] * 10 + [1] * 5), 0.2, []).sum())
    3
    """
    held = np.zeros(len(y), bool)
    for k in np.unique(y):
        rows = np.flatnonzero(y == k)
        n = min(max(1, round(fraction * len(rows))), len(rows) - 1) if fraction else 0
        number = int(numbers[k]) if len(numbers) and k >= 0 else int(k)
        held[rows[shuffle(len(rows), "hold out", number + 1)[:n]]] = True
    if fraction and not held.any():
        notes.append("too few rows to hold any out")
    return held


def _prepared(path: Path, settings: schema.DataConfig) -> Dataset:
    """Return the data set of a folder that `ganherd data prepare` wrote; images are not read yet."""
    index, x, y = shards.load_shards(path)
    if settings.points is not None:
        raise UserError(f"data.points is for points and rows, and {path} holds images; leave data.points out.")
    if settings.size not in (None, index.settings.size):
        raise UserError(
            f"{path} was prepared at {index.settings.size} pixels; leave data.size out, "
            f"or prepare the images again with --size {settings.size}."
        )
    notes, holdout = list(index.notes()), None
    if any(shard.split == "test" for shard in index.shards):
        x_test, y_test = shards.rows_of(path, index, "test")
    else:
        holdout = settings.holdout
        held = hold_out(y, holdout, notes, _split_numbers(index.labels, settings))
        x, y, x_test, y_test = x.pick(~held), y[~held], x.pick(held), y[held]
    train, test = cast(Array, x), cast(Array, x_test)  # `ShardRows` behave like arrays
    rows = (train, y, test, y_test)
    return Dataset(path.name or str(path), *rows, index.labels, 127.5, 127.5, tuple(notes), holdout=holdout)


def _read(settings: schema.DataConfig) -> tuple[RawData, str]:
    """Read `data.source`, and return its arrays before they are checked, and the name of the data set."""
    name = settings.source
    if in_memory.is_in_memory(name):
        return in_memory.read(name), in_memory.NAME
    if is_named_source(name):
        return read_named(settings), name
    if is_sample_source(name):
        samples = open_samples(name)
        return read_samples(samples, settings), samples.name
    path = expanded(name)
    if not path.exists():
        if path.is_absolute():
            raise UserError(
                f"data.source {name!r} is neither a known name nor a file or folder that exists; if it was moved, name its new "
                "place with --set data.source=PATH, also when you resume a run, or in the run's recipe.yaml."
            )
        names = DATA_SOURCES.names()
        hint = did_you_mean(name, names, "{}") or f"give a path, or one of {', '.join(names)}."
        raise UserError(
            f"data.source {name!r} is neither a known name nor a file or folder in {Path.cwd()}; {hint} If a run's recipe.yaml "
            "names it, it is relative to the folder in which the run was trained: write the whole path there."
        )
    return read_path(path, settings), path.name or str(path)


def _resize(data: TidyData, size: int) -> TidyData:
    """Return the data with images cropped to squares and resized to size × size pixels, and a note about it."""
    if data.x.shape[2:] == (size, size):
        return data
    before = " × ".join(str(n) for n in data.x.shape[2:])
    note = f"images of {before} were cropped to the centre square and resized to {size} × {size}"
    x_test = None if data.x_test is None else resized(data.x_test, size)
    return replace(data, x=resized(data.x, size), x_test=x_test, notes=(*data.notes, note))


def _keep(data: TidyData, points: int, name: str) -> TidyData:
    """Return the data with only this many of its training points, chosen at random but the same in every run."""
    if points > len(data.x):
        raise UserError(f"data.points is {points:,}, but {name} has {len(data.x):,} training rows; ask for fewer.")
    rows = np.sort(shuffle(len(data.x), "points")[:points])
    return replace(data, x=data.x[rows], y=data.y[rows])


def _units(x: Array) -> tuple[Units, Units]:
    """Return offset and scale: fixed for images, one for all coordinates of points, one per column of a table."""
    if x.ndim == 4:
        return 127.5, 127.5
    return span_units(x) if x.shape[1] == 2 else column_units(x)
