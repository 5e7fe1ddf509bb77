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

ASIDE = ".unfinished"  # subfolder that holds images until all are written; hidden, so that readers ignore it
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
    """Generate samples, write them in the format of the target's ending, and return the path.

    A folder is written while images are generated, so that their number is not limited by memory. For a file, all
    samples are held in memory.

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
    """Return the title and the subtitles that are written above a picture of samples.

    Args:
        run: The run of the mixture.
        mixture: The mixture.
        number: How many samples the picture shows, in words.
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
    """Generate n samples of one label or of all, or `per_class` samples of each label; arguments as in `save`."""
    batches: list[Samples] = []
    labels = labels_to_sample(mixture, label, per_class)
    total, values = len(labels) * (per_class or n), math.prod(mixture.shape) * (1 if mixture.is_image else 4)
    num_bytes = 2 * total * (values + _ROUTE)  # twice, because batches are copied when they are joined
    fewer = "Ask for fewer" + (", or write them to a folder/" if mixture.is_image else "")
    require_memory(num_bytes, counted(total, mixture.kind), fewer)
    for one in labels:
        progress = (lambda count, before=sum(map(len, batches)): watch(before + count)) if watch else None
        batches.append(mixture.sample(per_class or n, one, seed, replica, watch=progress))
    x, y, member = (np.concatenate([getattr(batch, field) for batch in batches]) for field in ("x", "y", "member"))
    return mixture.as_samples(x, y, member)


def labels_to_sample(mixture: Mixture, label: str | None, per_class: int | None) -> list[str | int | None]:
    """Return the labels to sample one after another: all labels if `per_class` is given, otherwise only `label`.

    None as a label stands for samples of all labels in the proportions of the mixture.

    Raises:
        UserError: `per_class` is given, and the mixture cannot generate each label.
    """
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
    return list(mixture.labels)


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
    """Write samples in the format of the target's ending, and return its path.

    Args:
        samples: The samples.
        target: .png or .svg: a grid, or a plot of points or rows; .npz: arrays; .csv: points or rows; otherwise a folder of
            PNG files.
        data: Points of the data, drawn behind the samples if these are points.
        heading: The text above a picture.
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
    """Turn an OSError in the block into a UserError that names the target."""
    try:
        yield
    except OSError as error:
        raise UserError(f"-o {target} cannot be written: {error.strerror}.") from error


def _stream(mixture: Mixture, writer: FolderWriter, n: int, label: str | int | None, seed: int, replica: int) -> None:
    """Generate n images and pass them to a writer batch by batch, so that they need not fit into memory.

    Args:
        mixture: The mixture.
        writer: Writes images to a folder for each label, or to one folder if they have no labels.
        n: The number of images.
        label: Sample this label only; None: all labels.
        seed: The seed of the samples.
        replica: The replica that generates them.
    """
    member, y = mixture.routes(n, label, seed, replica)
    numbers = _number_within_label(y)
    for generator, drawn in np.unique(np.stack([member, y]), axis=1).T.tolist():
        rows = np.flatnonzero((member == generator) & (y == drawn))
        left = numbers[rows]
        for x in mixture.images(generator, drawn, rows, seed, replica):
            writer.put(x, drawn, left[: len(x)])
            left = left[len(x) :]


def _write_folder(samples: Samples, folder: Path) -> Path:
    """Write images to a folder with a subfolder for each label, or without subfolders if there are no labels."""
    from ganherd.mixture.image_folder import FolderWriter

    numbers = _number_within_label(samples.y)
    with FolderWriter(folder, samples.labels, samples.x.shape[1:]) as writer:
        for label in np.unique(samples.y).tolist():
            rows = samples.y == label
            writer.put(samples.x[rows], label, numbers[rows])
    return folder


def _write_table(samples: Samples, path: Path) -> None:
    """Write points or rows as a CSV table that `ganherd train` can read: a header, then a line for each sample.

    The last column is the name of the label, if all samples have one.
    """
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
    """Return for each of n samples how many earlier samples have the same label, int64 [n].

    >>> _number_within_label(np.array([5, 7, 5, 5, 7])).tolist()
    [0, 0, 1, 2, 1]
    """
    out = np.empty(len(y), np.int64)
    for label in np.unique(y):
        rows = y == label
        out[rows] = np.arange(rows.sum())
    return out
