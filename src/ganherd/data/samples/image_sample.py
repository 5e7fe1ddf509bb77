"""Samples and sources of samples: what tars, tables and data sets of the Hugging Face Hub have in common.

A sample is the content of an image file, with its label. A source of samples is one or more files that hold samples. It
divides them into units, ranges of a file, which can be read in any order and by different processes.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.data.arrays import Array
from ganherd.data.readers.image_tree import TEST_NAMES, Split
from ganherd.util.errors import UserError

UNIT = 256  # most samples of a unit, which is the work that a worker loses if it is killed
# Names by which columns of images and of labels are recognised, the most likely first
IMAGE_NAMES = ("image", "img", "images", "picture", "photo", "jpg", "jpeg", "png", "webp", "pixel_values", "x")
LABEL_NAMES = (
    "label", "labels", "fine_label", "class", "cls", "class_label", "target", "category", "label_name", "class_name", "y",
)  # fmt: skip
MOST_BYTES = 2**28  # of one image file; larger ones are skipped
_ALIKE = 20  # smallest number of samples for which labels that hardly repeat are taken for captions

Label = int | str | None


@dataclass(frozen=True)
class ImageSample:
    """The content of an image file, and its label."""

    name: str  # for messages; the place of a random crop depends on it, too
    image: bytes  # not decoded
    label: Label = None
    problem: str = ""  # why it cannot be used; empty: it can


@dataclass(frozen=True)
class SampleUnit:
    """Samples that are read together: a range of one file."""

    file: Path
    split: Split
    start: int  # number of the first sample in the file
    count: int  # number of samples
    entries: tuple[Any, ...] = ()  # tars: where each sample is in the file
    group: tuple[int, int] = (0, 0)  # tables: number and first row of the row group that contains the samples

    def halves(self) -> tuple[SampleUnit, SampleUnit]:
        """Return the two halves of the unit."""
        middle = self.count // 2
        first = replace(self, count=middle, entries=self.entries[:middle])
        rest = replace(self, start=self.start + middle, count=self.count - middle, entries=self.entries[middle:])
        return first, rest


class SampleSource(ABC):
    """Base class of sources of samples: files with images and labels. It can be sent to other processes."""

    kind = "data"  # what the files are, for messages
    guesses_labels = False  # whether the labels may be captions

    def __init__(self, name: str, files: Sequence[tuple[Path, Split]], labels: tuple[str, ...] = ()) -> None:
        self.name, self.files, self.labels = name, tuple(files), labels

    @abstractmethod
    def units(self) -> Iterator[SampleUnit]:
        """Yield the units of all files in order: the pieces of work, of some samples each, that processes decode."""

    @abstractmethod
    def read(self, unit: SampleUnit) -> Iterator[ImageSample]:
        """Yield the samples of a unit, in order."""

    @property
    def choice(self) -> tuple[str, ...]:
        """What was chosen from the files, such as the names of columns; it is part of the digest of prepared data."""
        return ()

    def notes(self) -> list[str]:
        """Return notes for the user about the source."""
        test = [file.name for file, split in self.files if split == "test"]
        train = [file.name for file, split in self.files if split == "train"]
        return [f"trained on {_shortened(train)}, held out {_shortened(test)}"] if test else []

    def digest(self) -> str:
        """Return a digest of the names and sizes of the files and of `choice`, by which changes are noticed."""
        words = [self.name, *self.choice, *self.labels]
        words += [f"{file.name} {split} {file.stat().st_size}" for file, split in self.files]
        return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def with_splits(files: Sequence[Path], name: str, wanted: str | None) -> list[tuple[Path, Split]]:
    """Return the files, each with its split: `train`, or `test` for held-out data.

    Files of `train` and `test` (or `val`) are recognised by their name or folder. If there are no such pairs, all are
    `train`.

    Args:
        files: The files.
        name: What messages call the data.
        wanted: The only split to take, by the name in the source; its files become `train`. None: all.
    """
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_name(file), []).append(file)
    if wanted is not None:
        if wanted not in by_split:
            known = ", ".join(filter(None, by_split)) or "none"
            raise UserError(f"{name} has no split {wanted!r}; its splits are: {known}.")
        return [(file, "train") for file in by_split[wanted]]
    return choose_splits(by_split) or [(file, "train") for file in files]


def choose_splits(by_split: dict[str, list[Path]]) -> list[tuple[Path, Split]]:
    """Return the files of the split `train` and of the held-out split, each with its split.

    The held-out split is the first of `TEST_NAMES` that exists. Return an empty list if there is no `train` or no
    held-out split, or if some files belong to no split.
    """
    test = next((split for split in TEST_NAMES if split in by_split), None)
    if "train" not in by_split or test is None or "" in by_split:
        return []
    return [*((file, "train") for file in by_split["train"]), *((file, "test") for file in by_split[test])]


def _split_name(file: Path) -> str:
    """Return the name of the split that a file belongs to; "" if it names none.

    It is the beginning of the file's name, as in `train-00000-of-00002.parquet`, or the name of its folder.
    """
    for split in ("train", *TEST_NAMES):
        rest = file.name.lower().removeprefix(split)
        if rest != file.name.lower() and not rest[:1].isalpha():
            return split
    return folder if (folder := file.parent.name.lower()) in ("train", *TEST_NAMES) else ""


def as_label(value: Any) -> Label:
    """Return a label of any type as a whole number or a text; None stays None.

    Raises:
        ValueError: It is neither.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int | np.integer) or (isinstance(value, float | np.floating) and float(value).is_integer()):
        return int(value)
    raise ValueError(f"its label is a {type(value).__name__}, neither a number nor a name")


def number_labels(labels: Sequence[Label], names: tuple[str, ...]) -> tuple[Array, tuple[str, ...] | None]:
    """Return the number of each label, int64 [n] (-1: none), and the names of the classes.

    The names are None if all labels are numbers and the source has no names.

    Args:
        labels: The labels: numbers, names, or None for no label.
        names: Names of the classes, if the source has them; numbers are then indices of these names.

    >>> number_labels(["cat", None, "ant"], ())
    (array([ 1, -1,  0]), ('ant', 'cat'))
    """
    if all(label is None or isinstance(label, int) for label in labels):
        return np.array([-1 if label is None else label for label in labels], np.int64), names or None
    texts = [None if label is None else str(label) for label in labels]
    known = names if set(texts) - {None} <= set(names) else tuple(sorted({text for text in texts if text is not None}))
    number = {name: k for k, name in enumerate(known)}
    return np.array([-1 if text is None else number[text] for text in texts], np.int64), known


def are_captions(labels: Collection[Label]) -> bool:
    """Return whether labels are probably captions: there are at least 20, and more than half are distinct."""
    return len(labels) >= _ALIKE and len(set(labels)) * 2 > len(labels)


CAPTIONS = "the texts next to the images hardly repeat, so they are captions and no classes: the images have no labels"


def _shortened(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
