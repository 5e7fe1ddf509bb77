"""Write images as PNG files, in a folder for each label. Threads encode them.

Files are written to a hidden folder first, and moved to their places when all are complete.
"""

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

from ganherd.data.readers.image_tree import CLUTTER, SPLITS
from ganherd.mixture.sample_files import ASIDE
from ganherd.util.errors import UserError
from ganherd.util.host import cores

_COLOURS = {1: 0, 3: 2}  # number of channels -> PNG's code for grey or RGB
# Names that Windows refuses.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
_LONGEST = 120  # bytes in a folder's name; file systems allow 255, encrypted ones 143


class FolderWriter:
    """Write images to a folder in a `with` block: all appear in the folder when the block ends, or none if it fails."""

    def __init__(
        self, folder: Path, labels: Sequence[str], shape: Sequence[int], watch: Callable[[int], None] | None = None
    ) -> None:
        """Prepare the writer; nothing is written yet.

        Args:
            folder: The folder; it need not exist.
            labels: The names of all labels.
            shape: The shape of one image [C, H, W].
            watch: Called with the number of images written so far.

        Raises:
            UserError: The samples are not images that a PNG file can hold.
        """
        if len(shape) != 3:
            raise UserError("points and rows cannot be written as images: write to a .csv, an .npz or a .png.")
        if shape[0] not in _COLOURS:
            raise UserError(f"images of {shape[0]} channels are no PNG files that can be read again: write to an .npz.")
        self.names = folder_names(labels)
        self._folder, self._watch, self._done, self._is_new = folder, watch, 0, not folder.exists()
        self._aside = folder / ASIDE
        workers = cores()
        self._pool, self._pending, self._most = ThreadPoolExecutor(workers), deque[Future[int]](), 2 * workers

    def __enter__(self) -> FolderWriter:
        self._aside.mkdir(parents=True)
        return self

    def put(self, x: np.ndarray, label: int, numbers: np.ndarray) -> None:
        """Queue images for writing.

        Args:
            x: uint8 [m, C, H, W], all of one label.
            label: The number of the label; -1 for images without a label.
            numbers: int64 [m], the number of each image among those of its label, for its file name.
        """
        place = self._aside / self.names[label] if label >= 0 else self._aside
        place.mkdir(exist_ok=True)
        self._pending.append(self._pool.submit(_write, x, place, numbers))
        while len(self._pending) > self._most:  # Images that wait to be encoded must not fill the memory.
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        """Wait for the oldest queued images, and report progress."""
        self._done += self._pending.popleft().result()
        if self._watch:
            self._watch(self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            while kind is None and self._pending:
                self._wait_for_oldest()
            if kind is None:
                for path in sorted(self._aside.iterdir()):
                    path.rename(self._folder / path.name)
        finally:
            self._pool.shutdown(cancel_futures=True)
            shutil.rmtree(self._aside, ignore_errors=True)
            if self._is_new and not any(self._folder.iterdir()):
                self._folder.rmdir()


def folder_names(labels: Sequence[str]) -> list[str]:
    """Return a folder name for each label that is valid on every file system; names differ in more than case.

    No name is hidden or contains a path separator.

    >>> folder_names(["猫", "a/b", "a:b", "..", "A_B", "train"])
    ['猫', 'a_b', 'a_b (2)', '_', 'A_B (3)', 'train']
    >>> folder_names(["train", "test"])  # Alone, these two would be read as the halves of a split.
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
        while (folded := unicodedata.normalize("NFC", name).casefold()) in taken:
            number += 1
            name = f"{clean} ({number})"
        taken.add(folded)
        names.append(name)
    return names


def encode(x: np.ndarray) -> Iterator[bytes]:
    """Yield each image of a batch, uint8 [n, C, H, W] with one or three channels, as the content of a PNG file.

    PNG replaces the bytes of a row by differences before it compresses them. Here these are computed for the whole
    batch at once (every pixel minus its left neighbour), so that only zlib runs for each image. This takes a third of
    the time of a general encoder, and threads can run in parallel.

    >>> next(encode(np.zeros((1, 3, 4, 4), np.uint8)))[1:4]
    b'PNG'
    """
    n, channels, height, width = x.shape
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1))  # [n, H, W, C]
    rows = np.ones((n, height, 1 + width * channels), np.uint8)  # Each row begins with the number of its filter.
    inside = rows[:, :, 1:]
    inside[:] = pixels.reshape(n, height, -1)
    inside[:, :, channels:] -= pixels[:, :, :-1].reshape(n, height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    start, end = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header), _chunk(b"IEND", b"")
    for image in rows:
        yield start + _chunk(b"IDAT", zlib.compress(image)) + end


def _chunk(kind: bytes, body: bytes) -> bytes:
    """Return a chunk of a PNG file, with its length and checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))


def _write(x: np.ndarray, place: Path, numbers: np.ndarray) -> int:
    """Write images as numbered files, and return their number."""
    for number, image in zip(numbers.tolist(), encode(x), strict=True):
        with open(f"{place}/{number:06d}.png", "xb") as file:
            file.write(image)
    return len(x)
