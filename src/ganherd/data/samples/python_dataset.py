"""Read a data set that is a Python object, e.g. a `torch.utils.data.Dataset`, into arrays or shards.

Shards are files of decoded images, from which training reads only what it needs. They are written with bounded memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.data.arrays import SLACK, Array, RawData, scale_to_bytes, to_uint8
from ganherd.data.readers.class_folders import resized
from ganherd.data.samples.image_sample import UNIT, Label, number_labels
from ganherd.data.samples.python_items import Item, check_dataset, class_names, is_iterable_only, name_of, read_items
from ganherd.data.shards.sample_parts import SamplePart, SamplePiece, join_parts, write_piece
from ganherd.data.shards.shards import PARTS, SHARDS, Index, ShardSettings
from ganherd.util.errors import UserError, whole_number
from ganherd.util.memory import require_memory
from ganherd.util.paths import given_path

Progress = Callable[[int, int], None]  # called with the number of items that were read, and of all items (0: unknown)
_NEW = ".new"  # suffix of the name of a folder that is being written


def from_dataset(dataset: Any, *, size: int | None = None, progress: Progress | None = None) -> RawData:
    """Read a map-style data set, such as one of torchvision, into arrays. Each item is read once.

    Args:
        dataset: An object with `__len__` and `__getitem__`; see `python_items` for what an item can be.
        size: Width and height to which Pillow images are cropped and resized; None: they must have one size.
        progress: Called with the number of items that were read, and of all items.

    Raises:
        UserError: There are no items, an item raises, is of a wrong type, or has another shape than the first.

    >>> from_dataset([(np.zeros((8, 8), np.uint8), 0), (np.ones((8, 8), np.uint8), 1)]).x.shape
    (2, 8, 8)
    """
    check_dataset(dataset)
    name, size = name_of(dataset), None if size is None else whole_number("size", size, 1)
    if is_iterable_only(dataset):
        raise UserError(f"{name} can only be read from its beginning: write it to a folder with prepare_dataset first.")
    total = len(dataset)
    rows: Array | None = None
    first: Item | None = None
    labels: list[Label] = []
    for item in read_items(dataset, size):
        first = first or item
        _check_shape(name, first, item)
        if rows is None:
            num_bytes = total * item.value.nbytes
            require_memory(num_bytes, f"the {total:,} items of {name}", "Write them to a folder with prepare_dataset")
            rows = np.empty((total, *item.value.shape), item.value.dtype)
        if item.is_picture and len(item.value) > rows.shape[1]:  # the first picture with colour, after grey ones
            rows = np.repeat(rows, 3, axis=1)
        rows[item.number] = item.value
        labels.append(item.label)
        if progress is not None:
            progress(len(labels), total)
    if rows is None:
        raise UserError(f"{name} has no items; give a data set that is not empty.")
    y, names = number_labels(labels, class_names(dataset))
    has_labels = bool((y != -1).any())
    return RawData(rows, y if has_labels else None, labels=names if has_labels else None)


def prepare_dataset(
    dataset: Any, out: Path | str, *, size: int | None = None, progress: Progress | None = None
) -> Index:
    """Write the images of a data set to a folder of shards, which can be used as `data.source`, and return its index.

    A few hundred items are held in memory at once. The folder appears only when all items are written.

    Args:
        dataset: A map-style or an iterable data set; see `python_items` for what an item can be.
        out: The folder, which must not exist.
        size: Width and height to which images are cropped and resized; None: they must be squares of one size.
        progress: Called with the number of items that were read, and of all items (0: unknown).
    """
    check_dataset(dataset)
    name, out = name_of(dataset), given_path("the folder of shards", out)
    size = None if size is None else whole_number("size", size, 1)
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder, or remove it.")
    total = len(dataset) if hasattr(dataset, "__len__") else 0
    new = out.with_name(out.name + _NEW)
    shutil.rmtree(new, ignore_errors=True)  # left by a call that was killed
    writer = _PartWriter(new, name, size)
    try:
        for folder in (PARTS, SHARDS):
            (new / folder).mkdir(parents=True)
        for item in read_items(dataset, size):
            writer.add(item)
            if progress is not None:
                progress(item.number + 1, total)
        index = writer.finish(class_names(dataset))
        shutil.rmtree(new / PARTS)
        new.rename(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return index


class _PartWriter:
    """Collect items, write every few hundred of them to a file (a part), and join all parts to shards at the end."""

    def __init__(self, folder: Path, name: str, size: int | None) -> None:
        self._folder, self._name, self._size = folder, name, size
        self._first: Item | None = None
        self._items: list[Item] = []
        self._parts: list[SamplePart] = []
        self._scale: tuple[float, float] | None = None  # offset and factor that bring the first items to bytes

    def add(self, item: Item) -> None:
        """Add an item, and write a part if enough items are collected."""
        self._first = self._first or item
        if self._size is None:
            _check_shape(self._name, self._first, item)
        self._items.append(item)
        if len(self._items) == UNIT:
            self._write()

    def finish(self, names: tuple[str, ...]) -> Index:
        """Write the last part, join all parts to shards, and return the index; `names` are those of the classes."""
        if self._first is None:
            raise UserError(f"{self._name} has no items; give a data set that is not empty.")
        self._write()
        assert self._size is not None
        return join_parts(self._folder, ShardSettings(source=self._name, size=self._size), self._parts, names)

    def _write(self) -> None:
        if not self._items:
            return
        images = [self._image(item) for item in self._items]
        channels = max(len(image) for image in images)
        x = np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
        grey = sum(len(image) == 1 for image in images)
        path = self._folder / PARTS / f"{len(self._parts):06d}.npz"
        write_piece(path, SamplePiece(x, grey, labels=[item.label for item in self._items]))
        self._parts.append(SamplePart(path, "train", self._damaged))
        self._items = []

    def _damaged(self) -> None:
        raise UserError(f"{self._folder} was damaged while it was written; write {self._name} again.")

    def _image(self, item: Item) -> Array:
        """Return the image of an item, uint8 [1 or 3, size, size]."""
        where, x = f"item {item.number:,} of {self._name}", item.value
        if x.ndim == 2:
            x = x[None]
        if x.ndim == 3 and x.shape[0] not in (1, 3) and x.shape[2] in (1, 3):
            x = x.transpose(2, 0, 1)
        if x.ndim != 3 or x.shape[0] not in (1, 3):
            raise UserError(
                f"{where} has shape {item.value.shape}, and shards hold images of 1 or 3 channels; convert it first."
            )
        x = self._as_bytes(x, where)
        if self._size is None:
            if x.shape[1] != x.shape[2]:
                raise UserError(f"{where} is {x.shape[2]} × {x.shape[1]}, and shards hold squares; give size=64.")
            self._size = x.shape[1]
        return x if x.shape[1:] == (self._size, self._size) else resized(x[None], self._size)[0]

    def _as_bytes(self, x: Array, where: str) -> Array:
        """Return an image as bytes; `where` names it in messages.

        The range of values that are not bytes is guessed from the first items, because later ones are not known yet. A
        later item outside of this range raises a UserError.
        """
        if x.dtype == np.uint8:
            return x
        if self._scale is None:
            numbers = [item.value for item in self._items if item.value.dtype == x.dtype]
            self._scale, _ = scale_to_bytes(numbers, self._name)
        add, times = self._scale
        black, white = -add, 255 / times - add
        if not (x.min() >= black - SLACK and x.max() <= white + SLACK):  # also if one is NaN
            raise UserError(
                f"{where} has values in [{x.min():.4g}, {x.max():.4g}], and those before it are in [{black:g}, {white:g}]; bring "
                "all to bytes, or to [0, 1] or [-1, 1]."
            )
        return to_uint8(x, add, times)


def _check_shape(name: str, first: Item, item: Item) -> None:
    """Raise a UserError if an item differs from the first in shape or type; pictures may be grey or have colour."""
    shapes = [one.value.shape[1:] if one.is_picture else one.value.shape for one in (first, item)]
    if shapes[0] == shapes[1] and first.is_picture == item.is_picture:
        if first.value.dtype == item.value.dtype:
            return
        shapes = [first.value.dtype, item.value.dtype]  # type: ignore[list-item]
    sizes = [" × ".join(map(str, shape)) if isinstance(shape, tuple) else str(shape) for shape in shapes]
    raise UserError(
        f"items differ: item {first.number:,} of {name} is {sizes[0]} and item {item.number:,} is {sizes[1]}; bring them to one "
        "size and type in the data set's transform, or write images to a folder with prepare_dataset and size=64."
    )
