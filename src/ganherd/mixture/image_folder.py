"""A labelled folder of PNG files, written as fast as images are made: threads encode, and nothing is ever half there."""

from __future__ import annotations

import shutil
import struct
import unicodedata
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

from ganherd.data.readers.class_folders import CLUTTER, SPLITS
from ganherd.mixture.sampling import ASIDE
from ganherd.util.errors import UserError
from ganherd.util.host import cores

_COLOURS = {1: 0, 3: 2}  # by number of channels: PNG's own numbers for grey and RGB
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}  # not on Windows
_LONGEST = 120  # bytes of a folder's name; file systems take 255, encrypted ones 143


class FolderWriter:
    """`put` hands images over; when the block ends they are all there, or, if it ends by an error, none is.

    `watch` is told how many are written.
    """

    def __init__(
        self, folder: Path, labels: Sequence[str], shape: Sequence[int], watch: Callable[[int], None] | None = None
    ) -> None:
        if len(shape) != 3:
            raise UserError("points cannot be written as images: write to an .npz or a .png.")
        if shape[0] not in _COLOURS:
            raise UserError(f"images of {shape[0]} channels are no PNG files that can be read again: write to an .npz.")
        self.names = folder_names(labels)
        self._folder, self._watch, self._done, self._made = folder, watch, 0, not folder.exists()
        self._aside = folder / ASIDE
        workers = cores()
        self._pool, self._pending, self._most = ThreadPoolExecutor(workers), deque[Future[int]](), 2 * workers

    def __enter__(self) -> FolderWriter:
        self._aside.mkdir(parents=True)
        return self

    def put(self, x: np.ndarray, label: int, numbers: np.ndarray) -> None:
        """x uint8 [m, C, H, W], all of one label (-1: none), with the number that each has among those of its label."""
        place = self._aside / self.names[label] if label >= 0 else self._aside
        place.mkdir(exist_ok=True)
        self._pending.append(self._pool.submit(_write, x, place, numbers))
        while len(self._pending) > self._most:  # what waits to be encoded must not fill the memory
            self._settle()

    def _settle(self) -> None:
        self._done += self._pending.popleft().result()
        if self._watch:
            self._watch(self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            while kind is None and self._pending:
                self._settle()
            if kind is None:
                for path in sorted(self._aside.iterdir()):
                    path.rename(self._folder / path.name)
        finally:
            self._pool.shutdown(cancel_futures=True)
            shutil.rmtree(self._aside, ignore_errors=True)
            if self._made and not any(self._folder.iterdir()):
                self._folder.rmdir()


def folder_names(labels: Sequence[str]) -> list[str]:
    """Labels of any script as names of folders: each its own on every file system, none hidden, none a path.

    >>> folder_names(["猫", "a/b", "a:b", "..", "A_B", "train"])
    ['猫', 'a_b', 'a_b (2)', '_', 'A_B (3)', 'train']
    >>> folder_names(["train", "test"])  # these two alone would be read as the halves of a split
    ['train_', 'test_']
    """
    split = bool(labels) and all(label.lower() in SPLITS for label in labels)
    taken: set[str] = set()
    names = []
    for label in labels:
        clean = "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in label).strip(". ")
        clean = clean.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore").strip(". ") or "_"
        if split or clean.lower() in CLUTTER or clean.lower().partition(".")[0] in _DEVICES:
            clean += "_"
        name, number = clean, 1
        while (alike := unicodedata.normalize("NFC", name).casefold()) in taken:
            number += 1
            name = f"{clean} ({number})"
        taken.add(alike)
        names.append(name)
    return names


def encode(x: np.ndarray) -> Iterator[bytes]:
    """Each of uint8 [n, C, H, W], of one or three channels, as a PNG file.

    All of a batch are filtered at once (every pixel minus the one at its left), which leaves only zlib and a few bytes for
    each: a third of the time of a general encoder, and threads run side by side.

    >>> next(encode(np.zeros((1, 3, 4, 4), np.uint8)))[1:4]
    b'PNG'
    """
    n, channels, height, width = x.shape
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1))  # [n, H, W, C]
    rows = np.ones((n, height, 1 + width * channels), np.uint8)  # each begins with the number of its filter
    inside = rows[:, :, 1:]
    inside[:] = pixels.reshape(n, height, -1)
    inside[:, :, channels:] -= pixels[:, :, :-1].reshape(n, height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    start, end = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header), _chunk(b"IEND", b"")
    for image in rows:
        yield start + _chunk(b"IDAT", zlib.compress(image)) + end


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))


def _write(x: np.ndarray, place: Path, numbers: np.ndarray) -> int:
    for number, image in zip(numbers.tolist(), encode(x), strict=True):
        with open(f"{place}/{number:06d}.png", "xb") as file:
            file.write(image)
    return len(x)
