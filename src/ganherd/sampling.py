"""Samples of a mixture as a file: one picture, an `.npz`, or a labelled folder of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.errors import UserError

if TYPE_CHECKING:
    from ganherd.mixture import Mixture, Samples


def draw(
    mixture: Mixture,
    n: int = 64,
    label: str | None = None,
    per_class: int | None = None,
    seed: int = 0,
    replica: int = 0,
) -> Samples:
    """n samples of one label or of all, or `per_class` of each label."""
    if per_class is None:
        return mixture.sample(n, label, seed, replica)
    if not mixture.labels or label is not None:
        raise UserError(
            "--per-class asks for every label of the mixture: leave --label out, and train on data with labels."
        )
    from ganherd.mixture import Samples

    each = [mixture.sample(per_class, k, seed, replica) for k in range(len(mixture.labels))]
    x, y, member = (np.concatenate([getattr(one, field) for one in each]) for field in ("x", "y", "member"))
    return Samples(x, y, member, mixture.labels)


def check(target: str) -> Path | None:
    """Whether samples can be written there: the path for a file, None for a folder, or a sentence."""
    path = Path(target)
    if target.endswith(("/", os.sep)) or path.suffix == "":
        try:
            taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:
            raise UserError(f"-o {path} cannot be looked at: {error.strerror}.") from error
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
    try:
        if path is None:
            return _write_folder(samples, Path(target))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".npz":
            _write_arrays(samples, path)
        else:
            from ganherd import pictures

            grid = pictures.draw_samples(samples.x, samples.y, samples.labels, member=samples.member, data=data)
            pictures.save(grid, path)
    except OSError as error:
        raise UserError(f"-o {target} cannot be written: {error.strerror}.") from error
    return path


def _write_arrays(samples: Samples, path: Path) -> None:
    aside = path.with_name(path.name + ".new.npz")
    labels = np.array(samples.labels, dtype=np.str_)
    np.savez(aside, x=samples.x, y=samples.y, member=samples.member, labels=labels)
    aside.replace(path)


def _write_folder(samples: Samples, folder: Path) -> Path:
    """One folder for each label, or a flat one: the layout that `ganherd train` reads again."""
    if samples.x.ndim != 4:
        raise UserError("points cannot be written as images: write to an .npz or a .png.")
    from ganherd import pictures

    counts: dict[str, int] = {}
    for x, y in zip(samples.x, samples.y.tolist(), strict=True):
        label = _file_name(samples.labels[y]) if y >= 0 else ""
        number = counts[label] = counts.get(label, -1) + 1
        path = folder / label / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures.to_image(x).save(path)
    return folder


def _file_name(label: str) -> str:
    """A label as a folder's name: it may not lead anywhere else."""
    clean = "".join("_" if c in '/\\:*?"<>|' or ord(c) < 32 else c for c in label).strip(". ")
    return clean or "_"
