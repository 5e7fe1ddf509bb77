"""List the classes and files of a tree of images, without opening any file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ganherd.util.errors import UserError

CLUTTER = {"thumbs.db", "desktop.ini", "__macosx"}  # left behind by file managers and archivers
TEST_NAMES = (
    "test",
    "val",
    "valid",
    "validation",
)  # folders that hold the held-out images, the first of them if several
SPLITS = {"train", *TEST_NAMES}
Split = Literal["train", "test"]


@dataclass(frozen=True)
class FileGroup:
    """The files of one class and split, in order."""

    label: int  # index into the labels; -1: no classes
    split: Split
    folder: str  # below the root; "" is the root itself
    files: tuple[str, ...]  # below that folder


@dataclass(frozen=True)
class Tree:
    """The names of the classes, and the files of each."""

    labels: tuple[str, ...]
    groups: tuple[FileGroup, ...]
    unclassified: tuple[str, ...]  # files next to class folders, which belong to no class


def list_tree(root: Path, leave_out: Path | None = None, allow_empty: bool = False) -> Tree:
    """Return the classes and files of a folder: one folder per class, or flat; `train` and `test` (or `val`) are splits.

    Args:
        leave_out: A folder that may lie inside of `root` and does not belong to it.
        allow_empty: Accept folders without files.
    """
    seen = {identity(root)} | ({identity(leave_out)} if leave_out and leave_out.exists() else set())
    inside = {entry.name.lower(): entry.name for entry in visible_entries(root) if _is_new(entry, seen)}
    test = [inside[name] for name in TEST_NAMES if name in inside]
    if "train" not in inside or not test or set(inside) - SPLITS:
        labels, groups, unclassified = _split(root, "", "train", None, seen, allow_empty)
        return Tree(labels, tuple(groups), tuple(unclassified))
    labels, groups, unclassified = _split(root, inside["train"], "train", None, seen, allow_empty)
    _, more, also = _split(root, test[0], "test", labels, seen, allow_empty)
    return Tree(labels, (*groups, *more), (*unclassified, *also))


def _split(
    root: Path,
    folder: str,
    split: Split,
    known: tuple[str, ...] | None,
    seen: set[tuple[int, int]],
    allow_empty: bool,
) -> tuple[tuple[str, ...], list[FileGroup], list[str]]:
    """Return the labels, groups and unclassified files of one split; `known` are the labels of the training split."""
    here = root / folder
    entries = visible_entries(here)
    seen = {*seen, identity(here)}
    names = [entry.name for entry in entries if _is_new(entry, seen)]
    files = tuple(entry.name for entry in entries if not _is_dir(entry))
    names.sort(key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))
    # a folder's name may be no UTF-8 text; labels go into JSON and pages, which hold nothing else
    labels = tuple(name.encode("utf-8", "replace").decode() for name in names)
    if len(set(labels)) < len(labels):
        raise UserError(f"{here} has two class folders whose names look the same; rename one.")
    if known is not None and (bool(known) != bool(labels) or not set(labels) <= set(known)):
        strange = ", ".join(name for name in labels if name not in known) or "no class folders"
        raise UserError(f"{here} has {strange}, unlike the training folder next to it.")
    if not names:
        if not files and not allow_empty:
            raise UserError(f"{here} holds no images.")
        return (), [FileGroup(-1, split, folder, files)], []
    groups = []
    for name, label in zip(names, labels, strict=True):
        path = os.path.join(folder, name)
        below = tuple(_walk(str(root / path), {*seen, identity(root / path)}))
        if not below and not allow_empty:
            raise UserError(f"the class folder {root / path} is empty; add images or remove the folder.")
        groups.append(FileGroup((known or labels).index(label), split, path, below))
    return known or labels, groups, [os.path.join(folder, name) for name in files]


def _walk(top: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Yield all files below a folder in order; links back to a folder that was entered before are not followed."""
    levels = [("", iter(visible_entries(top)))]
    while levels:
        before, entries = levels[-1]
        for entry in entries:
            name = os.path.join(before, entry.name)
            if not _is_dir(entry):
                yield name
            elif (this := identity(entry.path)) not in seen:
                seen.add(this)
                levels.append((name, iter(visible_entries(entry.path))))
                break
        else:
            levels.pop()


def visible_entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in order, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            visible = [e for e in entries if not e.name.startswith(".") and e.name.lower() not in CLUTTER]
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read: {error.strerror}.") from None
    return sorted(visible, key=lambda entry: entry.name)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circular link
        return False


def _is_new(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> bool:
    return _is_dir(entry) and identity(entry.path) not in seen


def identity(path: str | Path) -> tuple[int, int]:
    """Return what identifies a file or folder, whichever of its names or links it is reached by."""
    status = os.stat(path)
    return status.st_dev, status.st_ino
