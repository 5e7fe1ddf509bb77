"""The tasks of a process that prepares images: decode a unit of files to a part, and join parts to a shard.

A part is a file with the decoded images of one unit; a shard is a file with all images of a class in one split. Both
are written to temporary files and renamed, so that they are complete even if a process is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.data.arrays import Array
from ganherd.data.keyed_random import raw
from ganherd.data.readers.class_folders import CENTRE, ImageReader
from ganherd.data.readers.image_tree import FileGroup
from ganherd.data.shards.shards import HEADER, PARTS, SHARDS, ShardSettings, header
from ganherd.util import files
from ganherd.util.files import JsonObject

UNIT = 256  # most files of a unit, which is the work that a worker loses if it is killed


@dataclass(frozen=True)
class ClassFiles(FileGroup):
    """The files of one class in one split, in order, and the number of their shard."""

    number: int  # number of the shard
    listing: str  # digest of the settings and the names of the files, by which finished work is recognised

    @property
    def units(self) -> range:
        """The numbers of the units into which the files are divided."""
        return range(-(-len(self.files) // UNIT))

    def files_of(self, unit: int) -> tuple[str, ...]:
        """Return the files of the unit of this number."""
        return self.files[unit * UNIT : (unit + 1) * UNIT]


@dataclass
class Piece:
    """The decoded images of some files, and facts about them."""

    x: Array  # uint8 [n, 1 or 3, size, size]
    grey: int = 0  # number of grey images
    skipped: list[tuple[str, str]] = field(default_factory=list)  # files that could not be used, each with the reason
    converted: Counter[str] = field(default_factory=Counter)  # number of images by kind of conversion

    @property
    def facts(self) -> JsonObject:
        """Everything but the images, as plain values for JSON."""
        return {"grey": self.grey, "skipped": self.skipped, "converted": dict(self.converted)}

    def add_facts(self, other: Piece) -> None:
        """Add the counts and skipped files of another piece to those of this one."""
        self.grey += other.grey
        self.skipped += other.skipped
        self.converted += other.converted


def read_piece(root: Path, settings: ShardSettings, folder: str, files: tuple[str, ...]) -> Piece:
    """Decode image files and return them; files that cannot be read are listed as skipped.

    Args:
        root: The root of the images.
        settings: The settings of prepared data.
        folder: The folder of the class, relative to the root.
        files: Paths of files, relative to that folder.
    """
    reader, images = ImageReader(Path(root, folder), settings.size), []
    for name in files:
        images += reader.read("", [name], place=crop_place(settings, f"{folder}/{name}"), draft=True)
    return Piece(reader.stack(images), reader.grey, reader.skipped, reader.converted)


def joined(pieces: list[Piece]) -> Piece:
    """Return several pieces joined to one; grey images repeat their channel if others have colour."""
    channels = max(piece.x.shape[1] for piece in pieces)
    total = Piece(np.concatenate([np.repeat(piece.x, channels // piece.x.shape[1], axis=1) for piece in pieces]))
    for piece in pieces:
        total.add_facts(piece)
    return total


def crop_place(settings: ShardSettings, name: str) -> tuple[float, float]:
    """Return the place of an image's crop: (0, 0) is left and top, (1, 1) is right and bottom.

    The place of a random crop depends on the seed and the file's name only.
    """
    if settings.crop == "centre":
        return CENTRE
    across, down = raw(2, f"crop {os.fsencode(name).hex()}", settings.seed or 0).astype(np.float64) / 2.0**64
    return float(across), float(down)


# --- parts ----------------------------------------------------------------------------------------------------------


def part_path(out: Path, source: ClassFiles, unit: int) -> Path:
    """Return the path of a unit's part. It contains a digest of the files, so a part of others is not used."""
    names = hashlib.sha256("\0".join((source.listing, *source.files_of(unit))).encode("utf-8", "surrogateescape"))
    return out / PARTS / f"{source.number:05d}-{unit:05d}-{names.hexdigest()[:16]}.npz"


def make_part(out: Path, root: Path, settings: ShardSettings, source: ClassFiles, unit: int) -> None:
    """Decode the images of one unit, and write them to its part.

    Args:
        out: The folder of prepared data.
        root: The root of the images.
        settings: The settings of prepared data.
        source: The files of the class.
        unit: The number of the unit.
    """
    write_part(part_path(out, source, unit), read_piece(root, settings, source.folder, source.files_of(unit)))


def write_part(path: Path, piece: Piece) -> None:
    """Write a part: the images of a unit, and what was skipped or converted."""
    facts = np.frombuffer(json.dumps(piece.facts).encode(), np.uint8)
    # It is not forced to the disk: a part that a power cut damaged fails its checksum and is made again.
    with files.replacing(path) as temporary:
        np.savez(temporary, x=piece.x, facts=facts)


def read_part(path: Path) -> Piece | None:
    """Return the content of a part; None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(bytes(file["facts"]))
            skipped = [(str(name), str(why)) for name, why in facts["skipped"]]
            return Piece(file["x"], facts["grey"], skipped, Counter(facts["converted"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


# --- shards ---------------------------------------------------------------------------------------------------------


def make_shard(out: Path, root: Path, settings: ShardSettings, source: ClassFiles) -> None:
    """Join the parts of a class to its shard, write the shard's record, and remove the parts.

    Parts are read twice, one at a time, so that memory is bounded: first to count images and channels, then to copy
    them. A damaged part is made again.
    """

    def pieces() -> Iterator[Piece]:
        for unit, path in zip(source.units, paths, strict=True):
            if (piece := read_part(path)) is None:
                make_part(out, root, settings, source, unit)
                piece = read_part(path)
            assert piece is not None
            yield piece

    paths = [part_path(out, source, unit) for unit in source.units]
    total = Piece(np.empty((0, 1, settings.size, settings.size), np.uint8))
    count, channels = 0, 1
    for piece in pieces():
        count += len(piece.x)
        channels = max(channels, piece.x.shape[1])
        total.add_facts(piece)
    _write_shard(out, source, (count, channels, *total.x.shape[2:]), (piece.x for piece in pieces()), total.facts)
    for path in paths:
        path.unlink(missing_ok=True)


def make_colour(out: Path, source: ClassFiles, record: Mapping[str, Any]) -> None:
    """Rewrite a shard of grey images with three channels, and its record, because other classes have colour.

    Args:
        out: The folder of prepared data.
        source: The files of the class.
        record: The current record of the shard.
    """
    path, sides = out / shard_file(source), tuple(record["sides"])
    shape = (record["count"], 3, *sides)
    # The shard has three channels already if a process was killed after writing it and before writing its record.
    there = 1 if path.stat().st_size == _bytes(record, 1) else 3
    pixels = np.memmap(path, np.uint8, "r", HEADER, (record["count"], there, *sides))
    facts = {key: record[key] for key in ("grey", "skipped", "converted")}
    _write_shard(out, source, shape, (pixels[i : i + UNIT] for i in range(0, len(pixels), UNIT)), facts)


def shard_file(source: ClassFiles) -> str:
    """Return the path of a class's shard, relative to the prepared folder."""
    return f"{SHARDS}/{source.number:05d}.npy"


def record_path(out: Path, source: ClassFiles) -> Path:
    """Return the path of the record of a finished shard, a JSON file from which `prepare` writes the index."""
    return out / PARTS / f"{source.number:05d}.json"


def read_record(out: Path, source: ClassFiles) -> JsonObject | None:
    """Return the record of a finished shard; None if it is missing, or was made of other files."""
    try:
        record: JsonObject = json.loads(record_path(out, source).read_bytes())
        if record["listing"] != source.listing:
            return None
        if record["count"] and (out / shard_file(source)).stat().st_size not in (
            _bytes(record, record["channels"]),
            _bytes(record, 3),
        ):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record


def _bytes(record: Mapping[str, Any], channels: int) -> int:
    return HEADER + int(record["count"]) * channels * int(np.prod(record["sides"]))


def _write_shard(
    out: Path, source: ClassFiles, shape: tuple[int, ...], blocks: Iterator[Array], facts: JsonObject
) -> None:
    """Write a shard, then its record: if the record exists, the shard is complete.

    Args:
        out: The folder of prepared data.
        source: The files of the class.
        shape: The shape of the whole shard, [count, C, H, W].
        blocks: Images [n, C, H, W], in order; grey ones get three channels if `shape` has three.
        facts: What the record states about skipped and converted files.
    """
    digest = hashlib.sha256(head := header(shape))
    if shape[0]:
        with files.replacing(out / shard_file(source), sync=True) as temporary, temporary.open("xb") as handle:
            handle.write(head)
            for block in blocks:
                pixels = np.ascontiguousarray(np.repeat(block, shape[1] // block.shape[1], axis=1)).data
                handle.write(pixels)
                digest.update(pixels)
    record = {
        "listing": source.listing,
        "count": shape[0],
        "channels": shape[1],
        "sides": shape[2:],
        "sha256": digest.hexdigest() if shape[0] else "",
        **facts,
    }
    files.atomic_write(record_path(out, source), json.dumps(record), sync=False)
