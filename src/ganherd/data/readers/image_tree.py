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
    """The files of one class in one split, in order."""

    label: int  # the number of the class; -1: there are no classes
    split: Split  # train, or test for held-out images
    folder: str  # path of the folder, relative to the root of the tree; "": the root itself
    files: tuple[str, ...]  # paths of the files, relative to that folder


@dataclass(frozen=True)
class Tree:
    """The names of the classes in a folder of images, and the files of each."""

    labels: tuple[str, ...]  # names of the classes; (): the images have no labels
    groups: tuple[FileGroup, ...]
    unclassified: tuple[str, ...]  # files next to class folders, which belong to no class
    unused: tuple[str, ...] = ()  # further folders of held-out images, which are not read


def list_tree(root: Path, leave_out: Path | None = None, allow_empty: bool = False) -> Tree:
    """Return the classes and files of a folder of images.

    The folder holds one folder per class, or images without labels. If it consists of folders `train` and `test` (or
    `val`), these are the splits, and each is such a folder.

    Args:
        root: The folder.
        leave_out: A folder inside of `root` that is ignored.
        allow_empty: Accept folders without files.

    Raises:
        UserError: A folder cannot be read or is empty, or the splits have different classes.
    """
    seen = {identity(root)} | ({identity(leave_out)} if leave_out and leave_out.exists() else set())
    inside = {entry.name.lower(): entry.name for entry in visible_entries(root) if _is_new(entry, seen)}
    test = [inside[name] for name in TEST_NAMES if name in inside]
    if "train" not in inside or not test or set(inside) - SPLITS:
        labels, groups, unclassified = _split(root, "", "train", None, seen, allow_empty)
        return Tree(labels, tuple(groups), tuple(unclassified))
    labels, groups, unclassified = _split(root, inside["train"], "train", None, seen, allow_empty)
    _, more, also = _split(root, test[0], "test", labels, seen, allow_empty)
    return Tree(labels, (*groups, *more), (*unclassified, *also), tuple(test[1:]))


def _split(
    root: Path,
    folder: str,
    split: Split,
    known: tuple[str, ...] | None,
    seen: set[tuple[int, int]],
    allow_empty: bool,
) -> tuple[tuple[str, ...], list[FileGroup], list[str]]:
    """Return the labels, the groups and the unclassified files of one split.

    Args:
        root: The root of the tree.
        folder: The folder of the split, relative to the root.
        split: The split.
        known: The labels of the training split, if this is the other one.
        seen: The identities (device, inode) of folders that are left out, because they were read already.
        allow_empty: Accept folders without files.
    """
    here = root / folder
    entries = visible_entries(here)
    seen = {*seen, identity(here)}
    names = [entry.name for entry in entries if _is_new(entry, seen)]
    files = tuple(entry.name for entry in entries if not _is_dir(entry))
    names.sort(key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))
    # The name of a folder may not be valid UTF-8, which JSON and pages require.
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
    """Yield the paths of all files below a folder, relative to it, in order.

    Folders in `seen` (identities) are not entered, and every other folder once, so that circular links end.
    """
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
    """Return the entries of a folder by name, without hidden files and those of file managers."""
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
    """Return numbers that identify a file or folder, the same for all of its names and links (device and inode)."""
    status = os.stat(path)
    return status.st_dev, status.st_ino
