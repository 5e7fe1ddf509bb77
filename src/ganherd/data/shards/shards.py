"""Read a folder of prepared images: an index, and for each class one file of decoded images, a shard.

```
OUT/index.json         labels, size and channels; of each shard its class, count and sha256; what was skipped, and why
OUT/shards/00017.npy   uint8 [count, C, H, W], to be mapped into memory
```

A process reads the index, and maps a shard into memory when it needs an image of it. A row is one image.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ganherd.data.arrays import Array
from ganherd.util import files
from ganherd.util.errors import UserError, few, first_invalid

INDEX, SHARDS, PARTS = "index.json", "shards", "parts"
_ANY = 1 << 62  # no limit to the size of a file, for one that is read block by block
NAMED = 5  # most skipped files that a note names
HEADER = 128  # bytes before the pixels of every shard
Ints = npt.NDArray[np.int64]


class _Facts(BaseModel):
    """Base class of the records in index.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ShardSettings(_Facts):
    """The settings with which a folder was prepared."""

    source: str  # the original images, such as their folder
    size: int = Field(ge=1)  # width and height of the images in pixels
    crop: Literal["centre", "random"] = "centre"  # which square of an image was taken
    seed: int | None = None  # seed of random crops


class Shard(_Facts):
    """The images of one class in one split."""

    file: str = Field(pattern=r"^shards/[0-9]{5,9}\.npy$")
    label: int = Field(ge=-1)  # number of the class; -1: no label
    split: Literal["train", "test"] = "train"  # test: held-out images
    count: int = Field(ge=0)  # number of images; 0: none could be read, and there is no file
    sha256: str = ""  # digest of the file
    listing: str = ""  # digest of the names of the original files, by which changes are noticed


class Skipped(_Facts):
    """A file that could not be read as an image."""

    file: str
    why: str


class Index(_Facts):
    """The content of `index.json`."""

    format: Literal["ganherd-shards-1"] = "ganherd-shards-1"
    settings: ShardSettings
    channels: Literal[1, 3]
    labels: tuple[str, ...]
    shards: tuple[Shard, ...]
    converted: dict[str, int] = {}  # number of images by kind of conversion
    skipped: tuple[Skipped, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Index:
        if any(shard.label >= len(self.labels) for shard in self.shards):
            raise ValueError("a shard is of a class that has no name")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of an image."""
        return self.channels, self.settings.size, self.settings.size

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user about the images."""
        notes = [f"{n:,} {what}" for what, n in sorted(self.converted.items())]
        if self.skipped:
            names = few([f"{one.file} ({one.why})" for one in self.skipped], NAMED)
            notes.append(f"skipped when it was prepared: {names}")
        return tuple(notes)


def header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file that holds an array uint8 of this shape, always 128 bytes long.

    With it, `numpy.load` can read shards.

    >>> len(header((1300, 3, 64, 64)))
    128
    """
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape!r}, }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode() + b"\n"


# --- reading --------------------------------------------------------------------------------------------------------


def is_prepared(folder: Path) -> bool:
    """Return whether a folder was made by `ganherd data prepare`; raise a UserError if it is unfinished."""
    if (folder / INDEX).is_file() and (folder / SHARDS).is_dir():
        return True
    if (folder / PARTS / "settings.json").is_file():
        raise UserError(
            f"{folder} is not prepared to its end; run the same `ganherd data prepare` again: it continues where it stopped."
        )
    return False


def read_index(folder: Path) -> Index:
    """Read and validate the index of a prepared folder; raise a UserError if it is missing or wrong."""
    path = folder / INDEX
    try:
        return Index.model_validate_json(files.read(path, files.MOST_JSON))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise UserError(
            f"{path} is no index of prepared images ({first_invalid(error)}); prepare them again."
        ) from None


class ShardFiles:
    """Access to the shards of one folder, which are mapped into memory when they are needed.

    It may be used by several threads.
    """

    def __init__(self, folder: Path, index: Index, shards: Sequence[Shard]) -> None:
        self.folder, self.shape, self.shards = folder, index.shape, tuple(shards)
        self.start: Ints = np.cumsum([0, *(shard.count for shard in shards)], dtype=np.int64)  # [shards + 1] first rows
        self.opened: list[str] = []  # shards in the order in which they were opened, repeatedly if closed in between
        self.bytes_read = 0  # bytes of images copied so far
        self._maps: OrderedDict[int, Array] = OrderedDict()
        self._most = _most_open()
        self._lock = threading.Lock()  # the threads of a streaming feed share this

    def pixels(self, number: int) -> Array:
        """Return the shard of this number as a memory map, uint8 [count, C, H, W]."""
        with self._lock:
            if number in self._maps:
                self._maps.move_to_end(number)
                return self._maps[number]
            pixels = self._maps[number] = self._open(self.shards[number])
            if len(self._maps) > self._most:  # A map keeps its file open, and the number of open files is limited.
                self._maps.popitem(last=False)
            return pixels

    def read(self, rows: Ints, out: Array) -> None:
        """Copy rows, int64 [n], numbered through all shards, to `out`, uint8 [n, C, H, W]."""
        if not len(rows):
            return
        shard = np.searchsorted(self.start, rows, side="right") - 1
        # Positions at which the shard changes. If members see one class each, these are few, and each run is one copy.
        cuts = np.flatnonzero(np.diff(shard)) + 1
        if len(cuts) * 4 > len(rows):  # Many short runs: sort the rows by shard.
            order = np.argsort(shard, kind="stable")
            edges = np.flatnonzero(np.diff(shard[order])) + 1
            for where in np.split(order, edges):
                number = int(shard[where[0]])
                out[where] = self.pixels(number)[rows[where] - self.start[number]]
        else:
            for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
                number = int(shard[a])
                # All rows are inside the shard; with mode "raise", numpy would copy them to a buffer first.
                np.take(self.pixels(number), rows[a:b] - self.start[number], axis=0, out=out[a:b], mode="clip")
        with self._lock:
            self.bytes_read += out.nbytes

    def _open(self, shard: Shard) -> Array:
        """Map a shard into memory, uint8 [count, C, H, W]; raise a UserError if its size is wrong or it is missing."""
        path = self.folder / shard.file
        shape = (shard.count, *self.shape)
        wanted = HEADER + int(np.prod(shape))
        try:
            with files.open_binary(path, wanted) as handle:
                size = handle.seek(0, 2)
                if size != wanted:
                    raise UserError(f"{path} has {size:,} bytes and should have {wanted:,}; prepare the images again.")
                pixels = np.memmap(handle, np.uint8, "r", HEADER, shape)
        except OSError as error:
            raise UserError(f"the shard {path} cannot be read: {error.strerror}.") from None
        self.opened.append(shard.file)
        return np.asarray(pixels)


@dataclass(frozen=True, eq=False)
class ShardRows:
    """Images of shards as one array-like object, uint8 [n, C, H, W], which reads images only when it is indexed.

    It can be indexed like a numpy array, by number, slice or mask of rows; `numpy.asarray` reads it whole.
    """

    files: ShardFiles
    rows: Ints  # [n], the images that it consists of, numbered through all shards of `files`

    dtype = np.dtype(np.uint8)
    ndim = 4

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.files.shape)

    @property
    def size(self) -> int:
        return len(self.rows) * int(np.prod(self.files.shape))

    nbytes = size

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Array:
        chosen = self.rows[key]
        out = np.empty((*np.shape(chosen), *self.files.shape), np.uint8)
        self.files.read(np.reshape(chosen, -1), out.reshape(-1, *self.files.shape))
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def reshape(self, *shape: int) -> Array:
        return self[:].reshape(*shape)

    def read(self, rows: Ints, out: Array) -> None:
        """Copy the images at these positions, int64 [n], to `out`, uint8 [n, C, H, W]."""
        self.files.read(self.rows[rows], out)

    def pick(self, key: Array) -> ShardRows:
        """Return only the images at these positions (numbers, or a mask bool [n]), without reading them."""
        return ShardRows(self.files, self.rows[key])

    @cached_property
    def digest(self) -> str:
        """Return a digest of the images, computed from the digests in the index, without reading the images."""
        total = hashlib.sha256()
        for shard in self.files.shards:
            total.update(f"{shard.sha256}{shard.count}\n".encode())
        total.update(np.ascontiguousarray(self.rows).data)
        return total.hexdigest()


def load_shards(folder: Path, classes: Sequence[int] | None = None) -> tuple[Index, ShardRows, Ints]:
    """Return the index, the training images x [n, C, H, W] and their labels y, int64 [n], of a prepared folder.

    No shard is opened before an image of it is needed.

    Args:
        folder: The prepared folder.
        classes: Numbers of the classes to return; None: all.
    """
    index = read_index(folder)
    return index, *rows_of(folder, index, "train", classes)


def rows_of(
    folder: Path, index: Index, split: Literal["train", "test"], classes: Sequence[int] | None = None
) -> tuple[ShardRows, Ints]:
    """Return the images x [n, C, H, W] and labels y, int64 [n], of one split of a prepared folder.

    Args:
        folder: The prepared folder.
        index: Its index.
        split: The split.
        classes: Numbers of the classes to return; None: all.
    """
    known = {shard.label for shard in index.shards}
    wanted = known if classes is None else set(classes)
    if strange := sorted(wanted - known):
        raise UserError(f"{folder} has no class number {strange[0]}: it has {len(index.labels)} (0 and up).")
    chosen = [shard for shard in index.shards if shard.split == split and shard.label in wanted]
    for shard in chosen:
        _check_size(folder, index, shard)
    y = np.repeat(np.array([shard.label for shard in chosen], np.int64), [shard.count for shard in chosen])
    return ShardRows(ShardFiles(folder, index, chosen), np.arange(len(y), dtype=np.int64)), y


def _check_size(folder: Path, index: Index, shard: Shard) -> None:
    """Raise a UserError if the size of a shard is not that of the index, before memory is reserved for it."""
    path, wanted = folder / shard.file, HEADER + shard.count * math.prod(index.shape)
    try:
        size = path.stat().st_size if shard.count else wanted
    except OSError:
        return  # A missing file is reported when it is opened.
    if size != wanted:
        raise UserError(f"{path} has {size:,} bytes and should have {wanted:,}; prepare the images again.")


def verify(folder: Path) -> None:
    """Read every shard and compare its digest with the index; raise a UserError for the first that differs."""
    for shard in read_index(folder).shards:
        if shard.count:
            path = folder / shard.file
            try:
                with files.open_binary(path, _ANY) as handle:
                    digest = hashlib.file_digest(handle, "sha256").hexdigest()
            except OSError as error:
                raise UserError(f"the shard {path} cannot be read: {error.strerror}.") from None
            if digest != shard.sha256:
                raise UserError(f"{path} is damaged: it is not what was prepared (sha256); prepare the images again.")


def _most_open() -> int:
    """Return how many shards this process may have open at once: half of the open files that are allowed."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        return 128
    return 1 << 16 if limit == resource.RLIM_INFINITY else max(16, limit // 2)
