"""Write and read parts of prepared data, files with some decoded samples and their labels, and join them to shards.

Parts can be written by any process in any order. Joining reads all parts twice, one at a time: first their labels, then
their images. So memory is bounded by one part, and a join that was killed can start again from the parts. A shard is a
file with all images of one class in one split.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.data.readers.class_folders import ImageReader
from ganherd.data.readers.image_tree import Split
from ganherd.data.samples.image_sample import CAPTIONS, Label, SampleSource, SampleUnit, are_captions, number_labels
from ganherd.data.shards.prepare import plain_text, write_index
from ganherd.data.shards.shards import PARTS, SHARDS, Index, Shard, ShardSettings, Skipped, header
from ganherd.data.shards.worker import Piece, crop_place
from ganherd.util import files
from ganherd.util.errors import UserError, few
from ganherd.util.files import JsonObject


@dataclass
class SamplePiece(Piece):
    """The content of a part: images of some samples, with the label of each."""

    labels: list[Label] = field(default_factory=list)  # as the source has them: numbers, names, or None

    @property
    def facts(self) -> JsonObject:
        return {**super().facts, "labels": self.labels, "channels": self.x.shape[1]}


@dataclass(frozen=True)
class SamplePart:
    """A part on the disk."""

    path: Path
    split: Split
    remake: Callable[[], None]  # writes the part again, if it is damaged

    def read(self, with_images: bool = True) -> SamplePiece:
        """Return the content of the part, with or without images; write it again first if it is damaged."""
        if (piece := _read_piece(self.path, with_images)) is None:
            self.remake()
            piece = _read_piece(self.path, with_images)
        assert piece is not None
        return piece


def read_unit(source: SampleSource, settings: ShardSettings, unit: SampleUnit) -> SamplePiece:
    """Decode the samples of a unit, and return them; images that cannot be read are listed as skipped."""
    reader, images, labels = ImageReader(Path(source.name), settings.size), [], []
    for sample in source.read(unit):
        options: Any = {"place": crop_place(settings, sample.name), "draft": True}
        image = reader.take(io.BytesIO(sample.image), sample.name, problem=sample.problem, **options)
        if image is not None:
            images.append(image)
            labels.append(sample.label)
    return SamplePiece(reader.stack(images), reader.grey, reader.skipped, reader.converted, labels)


def write_piece(path: Path, piece: SamplePiece) -> None:
    """Write a part to a temporary file and rename it.

    It is not forced to the disk, which would be slow: a damaged part is noticed and written again.
    """
    facts = np.frombuffer(json.dumps(piece.facts).encode(), np.uint8)
    with files.replacing(path) as temporary:
        np.savez(temporary, x=piece.x, facts=facts)


def _read_piece(path: Path, with_images: bool) -> SamplePiece | None:
    """Return the content of a part, with or without images; None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(bytes(file["facts"]))
            x = file["x"] if with_images else np.empty((0, facts["channels"], 0, 0), np.uint8)
            skipped = [(str(name), str(why)) for name, why in facts["skipped"]]
            return SamplePiece(x, facts["grey"], skipped, Counter(facts["converted"]), facts["labels"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


# --- joining --------------------------------------------------------------------------------------------------------


@dataclass
class _OpenShard:
    """A shard that is being written."""

    path: Path  # temporary path
    label: int  # number of the class; -1: no label
    split: Split
    count: int  # number of images that it will hold
    digest: Any  # hashlib's SHA-256 of what is written so far


def join_parts(
    out: Path,
    settings: ShardSettings,
    parts: Sequence[SamplePart],
    names: tuple[str, ...] = (),
    guesses_labels: bool = False,
    listing: str = "",
) -> Index:
    """Join parts to one shard for each class and split, write the index, and return it.

    Args:
        out: The folder of prepared data.
        settings: Its settings.
        parts: The parts of all samples, in order.
        names: Names of the classes, if the source has them.
        guesses_labels: Whether the labels may be captions, which are then dropped.
        listing: A digest of the source, by which the index recognises it.

    Raises:
        UserError: There is no training image, or a label is out of range.
    """
    total, labels, splits = SamplePiece(np.empty((0, 1, 0, 0), np.uint8)), [], []
    channels = 1
    for part in parts:
        piece = part.read(with_images=False)
        total.add_facts(piece)
        labels += piece.labels
        splits += [part.split] * len(piece.labels)
        channels = max(channels, piece.x.shape[1] if piece.labels else 1)
    if "train" not in splits:
        bad = few([f"{name} ({why})" for name, why in total.skipped], 3)
        raise UserError(f"{settings.source} holds no image to train on that can be read{f': {bad}' if bad else ''}.")
    if guesses_labels and are_captions(labels):
        labels = [None] * len(labels)
        total.converted[CAPTIONS] = len(labels)
    y, classes = _classes(labels, names, settings.source)
    shards = _write_shards(out, parts, y, splits, (channels, settings.size, settings.size))
    if channels == 3 and total.grey:
        total.converted["grey images became RGB, like the others"] = total.grey
    index = Index(
        settings=settings,
        channels=3 if channels == 3 else 1,
        labels=classes,
        shards=tuple(
            Shard(
                file=f"{SHARDS}/{number:05d}.npy",
                label=shard.label,
                split=shard.split,
                count=shard.count,
                sha256=shard.digest.hexdigest(),
                listing=listing,
            )
            for number, shard in enumerate(shards)
        ),
        converted=dict(total.converted),
        skipped=tuple(Skipped(file=plain_text(name), why=plain_text(why)) for name, why in total.skipped),
    )
    for number, shard in enumerate(shards):
        files.force_to_disk(shard.path)
        shard.path.replace(out / SHARDS / f"{number:05d}.npy")
    return write_index(out, index)


def _classes(labels: Sequence[Label], names: tuple[str, ...], source: str) -> tuple[Any, tuple[str, ...]]:
    """Return the class of each sample, int64 [n] (-1: none), and the names of the classes.

    Args:
        labels: The labels, as the source has them.
        names: Names of the classes, if the source has them.
        source: The source, for messages.
    """
    y, classes = number_labels(labels, names)
    if y.min() < -1:
        raise UserError(f"{source} has label {y.min()}; use 0 and up, or -1 for none.")
    if classes is None:
        values = np.unique(y[y >= 0])
        return np.where(y < 0, -1, np.searchsorted(values, y)), tuple(str(value) for value in values)
    if y.max() >= len(classes):
        raise UserError(
            f"{source} has label {y.max()}, but names {len(classes)} classes: use labels from 0 to {len(classes) - 1}."
        )
    return y, tuple(plain_text(name) for name in classes) if (y >= 0).any() else ()


def _write_shards(
    out: Path, parts: Sequence[SamplePart], y: Any, splits: Sequence[Split], shape: tuple[int, ...]
) -> list[_OpenShard]:
    """Write the images of each class and split to a temporary file, in the order of the parts; return the shards.

    Args:
        out: The folder of prepared data.
        parts: The parts of all samples, in order.
        y: int64 [n], the class of each sample.
        splits: The split of each sample [n].
        shape: The shape (C, H, W) of an image in the shards; grey images repeat their channel if C is 3.
    """
    counts = Counter(zip(splits, y.tolist(), strict=True))
    keys = sorted(counts, key=lambda key: (key[0] != "train", key[1]))
    shards: dict[tuple[Split, int], _OpenShard] = {}
    for number, (split, label) in enumerate(keys):
        head = header((counts[split, label], *shape))
        path = out / PARTS / f"{number:05d}.npy"
        path.write_bytes(head)
        shards[split, label] = _OpenShard(path, label, split, counts[split, label], hashlib.sha256(head))
    for part, of_part in _with_labels(parts, y):
        x = part.read().x
        for label in np.unique(of_part).tolist():
            shard = shards[part.split, label]
            rows = x[of_part == label]
            pixels = np.ascontiguousarray(np.repeat(rows, shape[0] // x.shape[1], axis=1)).data
            shard.digest.update(pixels)
            with shard.path.open("ab") as handle:  # Not left open: there may be more classes than files may be open.
                handle.write(pixels)
    return list(shards.values())


def _with_labels(parts: Sequence[SamplePart], y: Any) -> Iterator[tuple[SamplePart, Any]]:
    """Yield each part that has images, with their classes, the entries of y [n] that belong to them."""
    start = 0
    for part in parts:
        count = len(part.read(with_images=False).labels)
        if count:
            yield part, y[start : start + count]
        start += count
