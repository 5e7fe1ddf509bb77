"""A name or a path becomes a Dataset: arrays ready for the device, with a held-out split that nothing trains on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from ganherd.data import duplicates
from ganherd.data.arrays import Array, RawData, TidyData, tidy
from ganherd.data.keyed import shuffle
from ganherd.data.readers import files_by_format
from ganherd.data.readers.class_folders import read_folder, resized
from ganherd.data.readers.named import NAMED, find, missing
from ganherd.data.readers.stacked_mnist import STACKED, stack
from ganherd.data.readers.toys import TOYS, draw
from ganherd.data.shards import shards
from ganherd.recipe import schema
from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

_R15 = Path(__file__).with_name("readers") / "r15.txt"  # its first lines name the source


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training rows, held-out rows and class names. Model units are (x - offset) / scale."""

    name: str
    x: Array  # uint8 [n, C, H, W] (of a prepared folder `shards.Rows`, read as they are indexed), or float32 [n, 2]
    y: Array  # int64 [n], index into labels; -1: no label
    x_test: Array  # the held-out split, like x
    y_test: Array
    labels: tuple[str, ...]  # (): no labels
    offset: float
    scale: float
    notes: tuple[str, ...] = ()  # what a person should know: skipped files, converted ranges
    skipped: int = 0  # files of a folder that are no images
    holdout: float | None = None  # the part that was held out; None: the split is the source's own
    source_range: tuple[float, float] | None = None  # of the values in the source, if they were converted to bytes

    @property
    def split(self) -> str:
        """Whose split it is, as people say it."""
        return "as the source has it" if self.holdout is None else f"with data.holdout {self.holdout:g}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row: (C, H, W) or (2,)."""
        return tuple(int(n) for n in self.x.shape[1:])

    @property
    def is_image(self) -> bool:
        return self.x.ndim == 4

    @property
    def kind(self) -> str:
        """What its rows are called."""
        return "images" if self.is_image else "points"

    @cached_property
    def digest(self) -> str:
        """sha256 of the content: rows, labels and names, of both splits."""
        total = hashlib.sha256()
        for array in (self.x, self.y, self.x_test, self.y_test):
            total.update(f"{array.dtype.str}{array.shape}".encode())
            known = getattr(array, "digest", None)  # rows of shards need not be read for theirs
            total.update(known.encode() if known else np.ascontiguousarray(array).data)
        total.update("\0".join(self.labels).encode())
        return total.hexdigest()


def load(settings: schema.DataConfig) -> Dataset:
    """The data that a recipe names.

    >>> digits = load(recipe.Data(source="digits"))
    >>> digits.shape, digits.labels[7], len(digits.x) + len(digits.x_test)
    ((1, 8, 8), '7', 1797)
    """
    path = Path(settings.source).expanduser()
    if settings.source not in ("digits", *TOYS, *NAMED) and shards.is_prepared(path):
        return _prepared(path, settings)
    raw, name = _read(settings)
    data = tidy(raw, name)
    if data.x.ndim == 4:
        if settings.points is not None:
            raise UserError(f"data.points is for 2-D points, and {name} holds images; leave data.points out.")
        if settings.size is not None:
            data = _resize(data, settings.size)
    elif settings.size is not None:
        raise UserError(f"data.size is for images, and {name} holds 2-D points; leave data.size out.")
    notes = list(data.notes)
    holdout = settings.holdout if settings.source in TOYS else None
    if data.x_test is None or data.y_test is None:
        holdout = settings.holdout
        held = hold_out(data.y, settings.holdout)
        if settings.holdout and not held.any():
            notes.append("too few rows to hold any out")
        data = replace(data, x=data.x[~held], y=data.y[~held], x_test=data.x[held], y_test=data.y[held])
    if data.x.ndim == 4:
        notes += duplicates.find(data.x, data.x[:0] if data.x_test is None else data.x_test).notes("images")
    if settings.points is not None and settings.source not in TOYS:
        data = _keep(data, settings.points, name)
    assert data.x_test is not None and data.y_test is not None
    offset, scale = (127.5, 127.5) if data.x.ndim == 4 else _span(data.x)
    rows = (data.x, data.y, data.x_test, data.y_test)
    return Dataset(name, *rows, data.labels, offset, scale, tuple(notes), data.skipped, holdout, data.source_range)


def hold_out(y: Array, fraction: float) -> Array:
    """A mask of held-out rows: of each class the fraction, the same rows in every run, and never all of a class.

    >>> int(hold_out(np.array([0] * 10 + [1] * 5), 0.2).sum())
    3
    """
    held = np.zeros(len(y), bool)
    for k in np.unique(y):
        rows = np.flatnonzero(y == k)
        n = min(max(1, round(fraction * len(rows))), len(rows) - 1) if fraction else 0
        held[rows[shuffle(len(rows), "hold out", int(k) + 1)[:n]]] = True
    return held


def _prepared(path: Path, settings: schema.DataConfig) -> Dataset:
    """A folder that `ganherd data prepare` made: counts and labels are known, and no shard is opened yet."""
    index, x, y = shards.load_shards(path)
    if settings.points is not None:
        raise UserError(f"data.points is for 2-D points, and {path} holds images; leave data.points out.")
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
        held = hold_out(y, holdout)
        if holdout and not held.any():
            notes.append("too few rows to hold any out")
        x, y, x_test, y_test = x.pick(~held), y[~held], x.pick(held), y[held]
    train, test = cast(Array, x), cast(Array, x_test)  # they answer to what is asked of an array
    rows = (train, y, test, y_test)
    return Dataset(path.name or str(path), *rows, index.labels, 127.5, 127.5, tuple(notes), holdout=holdout)


def _read(settings: schema.DataConfig) -> tuple[RawData, str]:
    name = settings.source
    if name == "digits":
        return _digits(), name
    if name == "r15":
        return files_by_format.read_points(_R15), name
    if name in TOYS:
        return draw(name, settings.points, settings.holdout), name
    if name in NAMED:
        path = find(name)
        if path is None:
            raise missing(name)
        try:
            raw = _read_path(path, settings, mapped=True)  # what lies in the data folder stays as it is
        except files_by_format.UnreadableFile as error:
            again = f"remove it, and `ganherd data get {NAMED[name].made_of or name}` fetches it anew"
            raise UserError(f"{str(error).rstrip('.')}; {again}.") from None
        if name in STACKED:
            return stack(tidy(raw, STACKED[name])), name
        return replace(raw, labels=raw.labels or NAMED[name].labels), name
    path = Path(name).expanduser()
    if path.is_absolute() and not path.exists():
        raise UserError(
            f"data.source {name!r} is neither a known name nor a file or folder that exists; if it was moved, name its new "
            "place: with --set data.source=PATH, or for a run that has begun in its recipe.yaml."
        )
    if not path.exists():
        hint = did_you_mean(name, NAMED, "{}") or f"give a path, or one of {', '.join(NAMED)}."
        raise UserError(
            f"data.source {name!r} is neither a known name nor a file or folder in {Path.cwd()}; {hint} If a run's recipe.yaml "
            "names it, it is relative to the folder in which the run was trained: write the whole path there."
        )
    return _read_path(path, settings), path.name or str(path)


def _read_path(path: Path, settings: schema.DataConfig, mapped: bool = False) -> RawData:
    name = path.name.lower()
    if path.is_dir():
        if files_by_format.is_idx(path):
            return files_by_format.read_idx(path, mapped)
        return files_by_format.read_cifar(path) if files_by_format.is_cifar(path) else read_folder(path, settings)
    if not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder.")
    if name.endswith(".npz"):
        return files_by_format.read_npz(path, mapped)
    if name.endswith(".npy"):
        return files_by_format.read_npy(path)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return files_by_format.read_cifar(path)
    if name.endswith((".txt", ".csv", ".tsv")):
        return files_by_format.read_points(path)
    if "idx" in name or name.endswith("ubyte"):
        return files_by_format.read_idx_images(path)
    raise UserError(
        f"{path} is no data that ganherd reads: an .npz or .npy, idx files, CIFAR, points in .txt, or a folder of images."
    )


def _digits() -> RawData:
    from sklearn.datasets import load_digits  # here, because importing it takes a second

    found = load_digits()
    x = np.rint(found.images * (255 / 16)).astype(np.uint8)  # 0 … 16 to 0 … 255
    return RawData(x, found.target, labels=tuple("0123456789"))


def _resize(data: TidyData, size: int) -> TidyData:
    if data.x.shape[2:] == (size, size):
        return data
    before = " × ".join(str(n) for n in data.x.shape[2:])
    note = f"images of {before} were cropped to the centre square and resized to {size} × {size}"
    x_test = None if data.x_test is None else resized(data.x_test, size)
    return replace(data, x=resized(data.x, size), x_test=x_test, notes=(*data.notes, note))


def _keep(data: TidyData, points: int, name: str) -> TidyData:
    if points > len(data.x):
        raise UserError(f"data.points is {points:,}, but {name} has {len(data.x):,} training points; ask for fewer.")
    rows = np.sort(shuffle(len(data.x), "points")[:points])
    return replace(data, x=data.x[rows], y=data.y[rows])


def _span(x: Array) -> tuple[float, float]:
    """Centre and half-range over both coordinates, so that shapes keep their proportions."""
    low, high = float(x.min()), float(x.max())
    return (low + high) / 2, (high - low) / 2 or 1.0
