"""Samples of a mixture as a file: one picture, an `.npz`, or a labelled folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.util.errors import UserError
from ganherd.util.files import replacing

if TYPE_CHECKING:
    from ganherd.mixture.image_folder import FolderWriter
    from ganherd.mixture.mixture import Mixture, Samples

ASIDE = ".unfinished"  # in a folder that is not complete: hidden, so that readers see nothing of it
Watch = Callable[[int], None]  # told how many are done


def save(
    mixture: Mixture,
    target: str,
    n: int = 64,
    label: str | None = None,
    per_class: int | None = None,
    seed: int = 0,
    replica: int = 0,
    watch: Watch | None = None,
) -> Path:
    """n samples of one label or of all, or `per_class` of each label, written as `target` ends.

    Into a folder they go as they are made, however many they are; for a file they are held in memory.
    """
    if check(target) is not None:
        return write(draw(mixture, n, label, per_class, seed, replica, watch), target)
    from ganherd.mixture.image_folder import FolderWriter

    folder, asked = Path(target), asked_for(mixture, label, per_class)
    with _told(target), FolderWriter(folder, mixture.labels, mixture.shape, watch) as writer:
        for one in asked:
            _stream(mixture, writer, per_class or n, one, seed, replica)
    return folder


def draw(
    mixture: Mixture,
    n: int = 64,
    label: str | None = None,
    per_class: int | None = None,
    seed: int = 0,
    replica: int = 0,
    watch: Watch | None = None,
) -> Samples:
    """n samples of one label or of all, or `per_class` of each label."""
    from ganherd.mixture.mixture import Samples

    each: list[Samples] = []
    for one in asked_for(mixture, label, per_class):
        told = (lambda count, before=sum(map(len, each)): watch(before + count)) if watch else None
        each.append(mixture.sample(per_class or n, one, seed, replica, watch=told))
    x, y, member = (np.concatenate([getattr(one, field) for one in each]) for field in ("x", "y", "member"))
    return Samples(x, y, member, mixture.labels)


def asked_for(mixture: Mixture, label: str | None, per_class: int | None) -> list[str | int | None]:
    """What is sampled, one after the other: the label, all together (None), or every label for itself."""
    if per_class is None:
        return [label]
    if not mixture.labels or label is not None:
        raise UserError(
            "--per-class asks for every label of the mixture: leave --label out, and train on data with labels."
        )
    if not mixture.takes_label and (mixture.label_of < 0).any():
        raise UserError("--per-class asks for labels, and the members of this mixture stand for none: give -n instead.")
    return list(range(len(mixture.labels)))


def check(target: str) -> Path | None:
    """Whether samples can be written there: the path for a file, None for a folder, or a sentence."""
    path = Path(target)
    if target.endswith(("/", os.sep)) or path.suffix == "":
        try:
            taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:
            raise UserError(f"-o {path} cannot be looked at: {error.strerror}.") from error
        if taken and (path / ASIDE).is_dir():
            raise UserError(
                f"-o {path} holds {ASIDE}, left by a sampling that was killed: remove it or choose another."
            )
        if taken:
            raise UserError(f"-o {path} exists already and is not an empty folder; choose another.")
        return None
    if path.suffix.lower() not in (".png", ".svg", ".npz"):
        raise UserError(f"-o {target}: write to a .png, a .svg, an .npz, or a folder/.")
    if path.is_dir():
        raise UserError(f"-o {target} is a folder; end it with / to write images into it, or choose another name.")
    return path


def write(samples: Samples, target: str, data: np.ndarray | None = None) -> Path:
    """Writes by the name's ending: .png a grid (points: a scatter plot), .npz arrays, otherwise a folder of PNG files."""
    path = check(target)
    with _told(target):
        if path is None:
            return _write_folder(samples, Path(target))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            if path.suffix.lower() == ".npz":
                labels = np.array(samples.labels, dtype=np.str_)
                np.savez(aside, x=samples.x, y=samples.y, member=samples.member, labels=labels)
            else:
                from ganherd.viz import pictures

                grid = pictures.draw_samples(samples.x, samples.y, samples.labels, member=samples.member, data=data)
                pictures.save(grid, aside)
    return path


@contextmanager
def _told(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"-o {target} cannot be written: {error.strerror}.") from error


def _stream(mixture: Mixture, writer: FolderWriter, n: int, label: str | int | None, seed: int, replica: int) -> None:
    """One folder for each label, or a flat one: the layout that `ganherd train` reads again."""
    member, y = mixture.routes(n, label, seed, replica)
    numbers = _within(y)
    for pair in np.unique(np.stack([member, y]), axis=1).T.tolist():
        own = numbers[(member == pair[0]) & (y == pair[1])]
        for x in mixture.images(pair[0], pair[1], len(own), seed, replica):
            writer.put(x, pair[1], own[: len(x)])
            own = own[len(x) :]


def _write_folder(samples: Samples, folder: Path) -> Path:
    from ganherd.mixture.image_folder import FolderWriter

    numbers = _within(samples.y)
    with FolderWriter(folder, samples.labels, samples.x.shape[1:]) as writer:
        for label in np.unique(samples.y).tolist():
            own = samples.y == label
            writer.put(samples.x[own], label, numbers[own])
    return folder


def _within(y: np.ndarray) -> np.ndarray:
    """[n] the number that each has among those of its label.

    >>> _within(np.array([5, 7, 5, 5, 7])).tolist()
    [0, 0, 1, 2, 1]
    """
    out = np.empty(len(y), np.int64)
    for label in np.unique(y):
        own = y == label
        out[own] = np.arange(own.sum())
    return out
