"""Samples of a mixture: arrays with their labels, which can be drawn, saved, and shown in a notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.features.material import DrawnSamples
from ganherd.util.errors import UserError, counted, few
from ganherd.viz import pictures
from ganherd.viz.row_sheets import RowView
from ganherd.viz.sheets import draw_samples

if TYPE_CHECKING:
    from ganherd.viz.pictures import Picture


@dataclass(frozen=True, repr=False)
class Samples(DrawnSamples):
    """Generated samples with their labels and the members that generated them.

    `x` [n, …] are the samples in the units of the data, `y` [n] the numbers of their labels (-1: none), and `member`
    [n] the numbers of the members.
    """

    labels: tuple[str, ...]  # the names of all labels
    columns: tuple[str, ...] = ()  # names of the columns, if samples are rows of a table
    points: np.ndarray | None = None  # float32 [n, 2], rows projected onto the plane of most variance; None: no rows

    def __len__(self) -> int:
        return len(self.x)

    @property
    def view(self) -> RowView | None:
        """Return the columns and the projected points that a picture of rows needs; None for images and points."""
        return None if self.points is None else RowView(self.columns, self.points)

    def grid(self) -> Picture:
        """Return a picture: images as a grid with their labels, points as a scatter plot, rows as histograms."""
        return draw_samples(self.x, self.y, self.labels, member=self.member, view=self.view)

    def save(self, target: str | Path) -> Path:
        """Write the samples to a .png or .svg picture, an .npz, a .csv, or a folder of images, and return its path.

        Raises:
            UserError: The target exists and is a folder, cannot be written, or has another ending.
        """
        from ganherd.mixture import sample_files

        if not isinstance(target, str | os.PathLike) or not os.fspath(target):
            raise UserError(
                f"samples are saved to a file or a folder, not to {target!r}: give its path, such as grid.png."
            )
        return sample_files.write(self, os.fspath(target))

    def __repr__(self) -> str:
        kind = "images" if self.x.ndim == 4 else "points" if self.points is None else "rows"
        labels = [self.labels[k] for k in np.unique(self.y) if k >= 0]
        of = f" of {few(labels, 10)}" if labels else ""
        return f"<{counted(len(self), kind)} of shape {tuple(self.x.shape[1:])}{of}>"

    def _repr_png_(self) -> bytes:
        """Return the picture of `grid` for a notebook, as the content of a PNG file."""
        return pictures.png(self.grid())
