"""Read data files: .npz, .npy, idx, and CIFAR (binary or pickled)."""

from __future__ import annotations

import gzip
import math
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.lib.npyio import NpzFile

from ganherd.data.arrays import Array, RawData
from ganherd.data.readers.memory_map import map_bytes, map_member
from ganherd.data.readers.pickles import read_pickle
from ganherd.util.errors import UserError, first_line
from ganherd.util.memory import is_out_of_memory, reason, require_memory

LESS = "use a part of the data, or a machine with more memory"  # advice if memory runs out
LARGEST = 2**29  # bytes of one file of CIFAR; the real ones have 150 MB at most


_BROKEN = (
    OSError, ValueError, EOFError, KeyError, MemoryError, zlib.error, tarfile.TarError, zipfile.BadZipFile, struct.error,
    NotImplementedError,  # an archive compressed in a way that Python does not know
)  # fmt: skip


class UnreadableFile(UserError):
    """Raised for a file that exists but is not a valid file of the expected format."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn any error that a broken file causes inside the block into a UserError with one sentence.

    Args:
        path: The file, for the message.
        what: What the file should be, for the message.
    """
    try:
        yield
    except UserError:
        raise
    except _BROKEN as error:
        # With an errno the system refused access; otherwise the content of the file is wrong.
        kind = UserError if isinstance(error, OSError) and error.errno else UnreadableFile
        why = f"{reason(error)}; {LESS}" if is_out_of_memory(error) else first_line(error).rstrip(":")
        raise kind(f"{path} cannot be read as {what}: {why}.") from None


def _require_memory(path: Path, num_bytes: int) -> None:
    require_memory(num_bytes, f"the contents of {path}", LESS.capitalize())


# --- .npz -----------------------------------------------------------------------------------------------------------


def read_npz(path: Path, mapped: bool = False) -> RawData:
    """Read an .npz file with arrays x, y, or x_train, y_train, x_test, y_test, or images, labels.

    In the first two cases an array `labels` may hold the class names. An array `columns` may hold the names of the
    columns of a table.

    Args:
        path: The file.
        mapped: Map images that are stored as uncompressed bytes into memory instead of copying them. The file must then
            not be changed.
    """
    with reading(path, "an .npz file of plain arrays"), path.open("rb") as handle:
        if not handle.peek(6).startswith((b"PK", b"\x93NUMPY")):  # numpy would take anything else for a pickle
            raise ValueError("numpy.savez did not write it")
        file = np.load(handle, allow_pickle=False)
        if not isinstance(file, NpzFile):
            raise ValueError("it holds one array without a name")
        keys = set(file.files)
        names = [name for name in ("x", "x_train", "images") if name in keys]
        if not names:
            others = ", ".join(sorted(keys)) or "none"
            raise UserError(
                f"{path} needs an array x (with y), x_train (with y_train) or images (with labels); it has: {others}."
            )
        if len(names) > 1:
            raise UserError(f"{path} has both {names[0]} and {names[1]}; keep one of them.")
        x = names[0]
        y = {"x": "y", "x_train": "y_train", "images": "y" if "y" in keys else "labels"}[x]
        got = {k: _plain(file, k) for k in (y, "y_test", "labels", "columns") if k in keys}
        for key in keys & {x, "x_test"}:
            as_it_lies = map_member(handle, file.zip, key) if mapped and file.zip else None
            got[key] = _plain(file, key) if as_it_lies is None else as_it_lies
        notes = []
        if ignored := sorted(keys - set(got) - {"member"}):
            notes.append(f"arrays not used: {', '.join(ignored)}")
        labels = _names(got["labels"], path) if "labels" in got and y != "labels" else None
        columns = _names(got["columns"], path, "columns") if "columns" in got else None
        return RawData(got[x], got.get(y), got.get("x_test"), got.get("y_test"), labels, tuple(notes), columns=columns)


def read_npy(path: Path) -> RawData:
    """Read an .npy file, which holds one array of images, points or rows, without labels."""
    with reading(path, "an .npy file of numbers"), path.open("rb") as handle:
        if not handle.peek(6).startswith(b"\x93NUMPY"):  # numpy would take anything else for a pickle
            raise ValueError("numpy.save did not write it")
        _require_memory(path, path.stat().st_size)
        return RawData(np.load(handle, allow_pickle=False))


def _plain(file: NpzFile, key: str) -> Array:
    try:
        return np.asarray(file[key])
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise ValueError(f"{key} holds Python objects, which are never loaded; save it as numbers or text") from None


def _names(labels: Array, path: Path, key: str = "labels") -> tuple[str, ...] | None:
    """Return an array of names as texts; None if it is empty. `key` is the array's name in the file."""
    if labels.size == 0:
        return None
    if labels.ndim != 1 or labels.dtype.kind not in "US":
        whose = "class names; label numbers go into y" if key == "labels" else "names; save one for each column"
        raise UserError(f"{path} has `{key}` that are no list of {whose}.")
    return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in labels.tolist())


# --- idx (MNIST and its kin) ----------------------------------------------------------------------------------------


SPLITS = (("train",), ("t10k", "test"))  # words in the names of training files and of test files
KINDS = (("images", 3), ("labels", 1))  # the content of an idx file, and the number of axes of its array


def is_idx(folder: Path) -> bool:
    """Return whether a folder holds an idx file of images."""
    return any(_idx_files(folder, words, "images") for words in SPLITS)


def is_idx_complete(folder: Path) -> bool:
    """Return whether a folder holds all four idx files: images and labels, for training and for testing."""
    return all(_idx_files(folder, words, kind) for words in SPLITS for kind, _ in KINDS)


def read_idx(folder: Path, mapped: bool = False) -> RawData:
    """Read a folder with four idx files, gzipped or not: images and labels, for training and for testing.

    Args:
        folder: The folder.
        mapped: Map files that are not gzipped into memory instead of copying them.
    """
    arrays = []
    for words in SPLITS:
        for kind, rank in KINDS:
            files = _idx_files(folder, words, kind)
            if not files:
                raise UserError(f"{folder} lacks the file {words[0]}-{kind}-idx{rank}-ubyte (or with .gz).")
            if len(files) > 1:
                raise UserError(f"{folder} has {words[0]} {kind} twice: {files[0].name}, {files[1].name}; keep one.")
            arrays.append(read_idx_file(files[0], rank, mapped and kind == "images"))
    x, y, x_test, y_test = arrays
    return RawData(x, y, x_test, y_test)


def read_idx_images(path: Path) -> RawData:
    """Read one idx file of images, and the file of their labels if there is one of the matching name next to it."""
    twin = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    return RawData(read_idx_file(path, 3), read_idx_file(twin, 1) if twin != path and twin.is_file() else None)


def _idx_files(folder: Path, words: tuple[str, ...], kind: str) -> list[Path]:
    """Return the idx files in a folder of one split and kind; gzipped ones only if there is no plain one.

    Args:
        folder: The folder.
        words: Words of which the name must contain one, those of a split.
        kind: `images` or `labels`.
    """
    pattern = re.compile(rf"([^.].*[-_])?({'|'.join(words)})[-_]{kind}[-.]idx\d[-.]ubyte(\.gz)?", re.IGNORECASE)
    try:
        files = sorted(p for p in folder.iterdir() if pattern.fullmatch(p.name) and p.is_file())
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read: {error.strerror}.") from None
    return [p for p in files if p.suffix != ".gz"] or files


def read_idx_file(path: Path, rank: int, mapped: bool = False) -> Array:
    """Return the array in an idx file, uint8 with `rank` axes.

    Args:
        path: The file, gzipped or not.
        rank: The number of axes that the array must have.
        mapped: Map it into memory instead of copying it, if it is not gzipped.
    """
    packed = path.suffix == ".gz"
    with reading(path, "an idx file"), gzip.open(path) if packed else path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] != 0x08 or head[3] != rank:
            raise ValueError(f"it does not begin as one of bytes with {rank} axes")
        sizes = file.read(4 * rank)
        if len(sizes) < 4 * rank:
            raise ValueError("it ends within its header")
        shape = struct.unpack(f">{rank}I", sizes)
        promised, start = math.prod(shape), file.tell()
        if mapped and not packed and promised and path.stat().st_size == start + promised:
            return map_bytes(cast(IO[bytes], file), start, shape)
        if not packed:
            _require_memory(path, min(promised, path.stat().st_size))
        body = _at_most(file, promised + 1)
        if len(body) != promised:
            less = "fewer" if len(body) < promised else "more"
            raise ValueError(f"its header promises {promised:,} bytes, and the file has {less}")
        return np.frombuffer(body, np.uint8).reshape(shape)


def _at_most(file: IO[bytes] | gzip.GzipFile, n: int) -> bytes:
    """Read at most n bytes of a file, block by block, so that a wrong n from a header reserves no memory in advance."""
    blocks, left = [], n
    while left and (block := file.read(min(left, 2**24))):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


# --- CIFAR ----------------------------------------------------------------------------------------------------------

CIFAR_FILE = re.compile(
    r"(data_batch_[1-9]|test_batch|train|test)(\.bin)?|meta|batches\.meta(\.txt)?|fine_label_names\.txt"
)


def is_cifar(folder: Path) -> bool:
    """Return whether a folder holds the files of CIFAR-10 or CIFAR-100, binary or pickled."""

    def has(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    return has("data_batch_1.bin") or has("train.bin") or has("data_batch_1") or has("train", "meta")


def read_cifar(path: Path) -> RawData:
    """Read CIFAR-10 or CIFAR-100 (fine labels) from its folder or its .tar.gz, which is not unpacked to the disk."""
    files = _cifar_files(path)
    pickled = not any(name.endswith(".bin") for name in files)
    end = "" if pickled else ".bin"
    batches = sorted(name for name in files if re.fullmatch(rf"data_batch_\d{re.escape(end)}", name))
    hundred = not batches
    train, test = (["train" + end], "test" + end) if hundred else (batches, "test_batch" + end)
    if any(name not in files for name in train):
        other = (
            "" if path.is_dir() else "; images are read from a .tar that is not compressed, or from a folder: unpack it"
        )
        raise UserError(f"{path} holds no CIFAR data: neither data_batch_1.bin nor train.bin is in it{other}.")
    notes = []
    if not hundred and len(batches) < 5:
        notes.append(f"only {len(batches)} of the 5 training batches are there")

    def part(name: str) -> tuple[Array, Array]:
        where = f"{path.name}/{name}"
        return _cifar_pickled(files[name], where) if pickled else _cifar_binary(files[name], where, hundred)

    parts = [part(name) for name in train]
    x, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    x_test, y_test = part(test) if test in files else (None, None)
    return RawData(x, y, x_test, y_test, _cifar_names(files, path), tuple(notes))


def _cifar_files(path: Path) -> dict[str, bytes]:
    """Return the contents of CIFAR's files in a folder or an archive, by their names."""
    files: dict[str, bytes] = {}
    with reading(path, "CIFAR data"):
        if path.is_dir():
            for file in path.iterdir():
                if CIFAR_FILE.fullmatch(file.name) and file.is_file():
                    with file.open("rb") as handle:
                        files[file.name] = _at_most(handle, LARGEST)
            return files
        with path.open("rb") as handle:
            if not handle.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile would look for an end of the zeros
                raise ValueError("it begins with an empty block, so it holds no files")
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if member.isreg() and CIFAR_FILE.fullmatch(name) and (stream := archive.extractfile(member)):
                    files[name] = _at_most(stream, LARGEST)
    return files


def _cifar_binary(data: bytes, where: str, hundred: bool) -> tuple[Array, Array]:
    """Return images, uint8 [n, 3, 32, 32], and labels [n] of a binary file of CIFAR-10, or 100 if `hundred`."""
    head = 2 if hundred else 1  # CIFAR-100 has the coarse label first, then the fine one
    if not data or len(data) % (head + 3072):
        raise UserError(f"{where} has {len(data):,} bytes, which is no whole number of CIFAR images; get it again.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, head + 3072)
    return rows[:, head:].reshape(-1, 3, 32, 32), rows[:, head - 1]


def _cifar_pickled(data: bytes, where: str) -> tuple[Array, Array]:
    """Return the images, uint8 [n, 3, 32, 32], and the labels, int64 [n], of a pickled file of CIFAR."""
    batch = read_pickle(data, where)
    x, y = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        raise UserError(f"{where} has no array `data` of n × 3072 bytes; use the binary version.")
    if not isinstance(y, list) or not all(type(v) is int for v in y):
        raise UserError(f"{where} has no list of whole numbers as labels; use the binary version.")
    return x.reshape(-1, 3, 32, 32), np.array(y, np.int64)


def _cifar_names(files: dict[str, bytes], path: Path) -> tuple[str, ...] | None:
    """Return the names of the classes from the contents of CIFAR's files; None if no file holds them."""
    for name in ("batches.meta.txt", "fine_label_names.txt"):
        if name in files:
            return tuple(line.strip() for line in files[name].decode("utf-8", "replace").splitlines() if line.strip())
    for name in ("batches.meta", "meta"):
        if name in files:
            meta = read_pickle(files[name], f"{path.name}/{name}")
            names = meta.get("fine_label_names", meta.get("label_names"))
            if isinstance(names, list) and all(isinstance(v, str | bytes) for v in names):
                return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in names)
    return None
