"""Write samples of a mixture to a file: a picture, an `.npz`, a table, or a labelled folder of images."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.data.readers.tables import LABEL_NAMES
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError, counted
from ganherd.util.files import replacing
from ganherd.util.memory import require_memory
from ganherd.viz.sheets import Heading

if TYPE_CHECKING:
    from ganherd.mixture.image_folder import FolderWriter
    from ganherd.mixture.mixture import Mixture
    from ganherd.mixture.samples import Samples

ASIDE = ".unfinished"  # holds images until the folder is complete; hidden, so that readers ignore it
_ROUTE = 16  # bytes of the member and the label of a sample
Watch = Callable[[int], None]  # called with the number of samples done


def save(
    mixture: Mixture,
    target: str,
    n: int = 64,
    label: str | None = None,
    per_class: int | None = None,
    seed: int = 0,
    replica: int = 0,
    watch: Watch | None = None,
    run: str | Path | None = None,
) -> Path:
    """Write samples in the format that the end of `target` names.

    A folder is written while images are generated, so that any number fits; for a file they are held in memory.

    Args:
        mixture: The mixture.
        target: A .png, .svg, .npz or .csv file, or a folder.
        n: The number of samples.
        label: Sample this label only; None: all.
        per_class: Sample this many of each label instead of n.
        seed: The seed of the samples.
        replica: The replica that generates them.
        watch: Called with the number of samples done.
        run: The run of the mixture, for the title of a picture.

    Raises:
        UserError: The target cannot be written, or the mixture has no such labels.
    """
    if check(target) is not None:
        samples = draw(mixture, n, label, per_class, seed, replica, watch)
        number = f"{per_class} samples of each label" if per_class else f"{n:,} samples"
        number += f" of {label}" if label is not None else ""
        above = heading(RunFolder(run), mixture, number, seed, replica) if run is not None else None
        return write(samples, target, heading=above)
    from ganherd.mixture.image_folder import FolderWriter

    folder, labels = Path(target), labels_to_sample(mixture, label, per_class)
    require_memory((per_class or n) * 2 * _ROUTE, f"members and labels of {per_class or n:,} samples", "Ask for fewer")
    with _refusing_unwritable(target), FolderWriter(folder, mixture.labels, mixture.shape, watch) as writer:
        for one in labels:
            _stream(mixture, writer, per_class or n, one, seed, replica)
    return folder


def heading(run: RunFolder, mixture: Mixture, number: str, seed: int = 0, replica: int = 0) -> Heading:
    """Return what is written above a picture of samples.

    Args:
        number: The samples in words.
        seed: The seed of the samples.
        replica: The replica that generated them.
    """
    trained = mixture.seeds[replica] if replica < len(mixture.seeds) else 0
    several = f" ({replica + 1} of {mixture.replicas} replicas)" if mixture.replicas > 1 else ""
    members = counted(mixture.members, "members")
    return Heading(
        run.title, [f"step {mixture.step:,}", f"seed {trained}{several}", members, f"{number}, drawn with seed {seed}"]
    )


def draw(
    mixture: Mixture,
    n: int = 64,
    label: str | None = None,
    per_class: int | None = None,
    seed: int = 0,
    replica: int = 0,
    watch: Watch | None = None,
) -> Samples:
    """Return n samples of one label or of all, or `per_class` of each label. Arguments are those of `save`."""
    batches: list[Samples] = []
    labels = labels_to_sample(mixture, label, per_class)
    total, values = len(labels) * (per_class or n), math.prod(mixture.shape) * (1 if mixture.is_image else 4)
    num_bytes = 2 * total * (values + _ROUTE)  # the batches, and all of them joined
    fewer = "Ask for fewer" + (", or write them to a folder/" if mixture.is_image else "")
    require_memory(num_bytes, counted(total, mixture.kind), fewer)
    for one in labels:
        progress = (lambda count, before=sum(map(len, batches)): watch(before + count)) if watch else None
        batches.append(mixture.sample(per_class or n, one, seed, replica, watch=progress))
    x, y, member = (np.concatenate([getattr(batch, field) for batch in batches]) for field in ("x", "y", "member"))
    return mixture.as_samples(x, y, member)


def labels_to_sample(mixture: Mixture, label: str | None, per_class: int | None) -> list[str | int | None]:
    """Return the labels to sample one after another: one label, None for all labels at once, or each label."""
    if per_class is None:
        return [label]
    if not mixture.labels or label is not None:
        raise UserError(
            "--per-class asks for every label of the mixture: leave --label out, and train on data with labels."
        )
    if not mixture.takes_label and (mixture.label_of < 0).any():
        raise UserError(
            "--per-class asks for labels, and not all members of this mixture generate one label: give -n instead."
        )
    return list(range(len(mixture.labels)))


def check(target: str) -> Path | None:
    """Check that samples can be written to a target, and return its path; None for a folder.

    Raises:
        UserError: The target exists, is not accessible, or its format is unknown.
    """
    path = Path(target)
    if target.endswith(("/", os.sep)) or path.suffix == "":
        try:
            taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:
            raise UserError(f"-o {path} cannot be read: {error.strerror}.") from error
        if taken and (path / ASIDE).is_dir():
            raise UserError(
                f"-o {path} holds {ASIDE}, left by a sampling that was killed: remove it or choose another."
            )
        if taken:
            raise UserError(f"-o {path} exists already and is not an empty folder; choose another.")
        return None
    if path.suffix.lower() not in (".png", ".svg", ".npz", ".csv"):
        raise UserError(f"-o {target}: write to a .png, a .svg, an .npz, a .csv, or a folder/.")
    if path.is_dir():
        raise UserError(f"-o {target} is a folder; end it with / to write images into it, or choose another name.")
    return path


def write(samples: Samples, target: str, data: np.ndarray | None = None, heading: Heading | None = None) -> Path:
    """Write samples in the format that the end of `target` names.

    Args:
        samples: The samples.
        target: .png or .svg: a grid, or a plot of points or rows; .npz: arrays; .csv: points or rows; otherwise a folder of
            PNG files.
        data: Points of the data, drawn behind those of the samples.
        heading: What is written above a picture.
    """
    path = check(target)
    with _refusing_unwritable(target):
        if path is None:
            return _write_folder(samples, Path(target))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            if path.suffix.lower() == ".npz":
                labels = np.array(samples.labels, dtype=np.str_)
                arrays: dict[str, Any] = {"x": samples.x, "y": samples.y, "member": samples.member, "labels": labels}
                if samples.columns:
                    arrays["columns"] = np.array(samples.columns, dtype=np.str_)
                np.savez(aside, **arrays)
            elif path.suffix.lower() == ".csv":
                _write_table(samples, aside)
            else:
                from ganherd.viz import pictures, sheets

                sheet = sheets.draw_samples(
                    samples.x,
                    samples.y,
                    samples.labels,
                    member=samples.member,
                    data=data,
                    heading=heading,
                    view=samples.view,
                )
                pictures.save(sheet, aside)
    return path


@contextmanager
def _refusing_unwritable(target: str) -> Iterator[None]:
    """Turn an OSError into a UserError that names the target."""
    try:
        yield
    except OSError as error:
        raise UserError(f"-o {target} cannot be written: {error.strerror}.") from error


def _stream(mixture: Mixture, writer: FolderWriter, n: int, label: str | int | None, seed: int, replica: int) -> None:
    """Generate images and write them to a folder for each label, or a flat one; `ganherd train` can read both."""
    member, y = mixture.routes(n, label, seed, replica)
    numbers = _number_within_label(y)
    for generator, drawn in np.unique(np.stack([member, y]), axis=1).T.tolist():
        rows = np.flatnonzero((member == generator) & (y == drawn))
        left = numbers[rows]
        for x in mixture.images(generator, drawn, rows, seed, replica):
            writer.put(x, drawn, left[: len(x)])
            left = left[len(x) :]


def _write_folder(samples: Samples, folder: Path) -> Path:
    """Write samples to a folder for each label, or a flat one."""
    from ganherd.mixture.image_folder import FolderWriter

    numbers = _number_within_label(samples.y)
    with FolderWriter(folder, samples.labels, samples.x.shape[1:]) as writer:
        for label in np.unique(samples.y).tolist():
            rows = samples.y == label
            writer.put(samples.x[rows], label, numbers[rows])
    return folder


def _write_table(samples: Samples, path: Path) -> None:
    """Write points or rows as CSV: a header, the columns, and the label if there are labels; `ganherd train` can read it."""
    if samples.x.ndim != 2:
        raise UserError("images cannot be written as a table: write to an .npz, a .png or a folder/.")
    names = samples.columns or tuple(f"x{j + 1}" for j in range(samples.x.shape[1]))
    header, labelled = list(names), bool(samples.labels) and bool((samples.y >= 0).all())
    if labelled:
        header.append(next(name for name in (*LABEL_NAMES, "label of the sample") if name not in names))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row, label in zip(samples.x.tolist(), samples.y.tolist(), strict=True):
            writer.writerow([*(f"{value:.7g}" for value in row), *([samples.labels[label]] if labelled else [])])


def _number_within_label(y: np.ndarray) -> np.ndarray:
    """Return the number of each sample among those of its label [n].

    >>> _number_within_label(np.array([5, 7, 5, 5, 7])).tolist()
    [0, 0, 1, 2, 1]
    """
    out = np.empty(len(y), np.int64)
    for label in np.unique(y):
        rows = y == label
        out[rows] = np.arange(rows.sum())
    return out
