"""Draw rows of tables, generated over real: a histogram of each column, and all rows as points in a plane (PCA)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.viz.pictures import DATA, GENERATED, INK, SOFT, new_figure, scatter, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 30  # up to this number, each column has a histogram; more columns are drawn as one band
_ACROSS = 5  # histograms in a row
_BINS = 20
_LONGEST = 24  # longer names of columns are cut


@dataclass(frozen=True)
class RowView:
    """What a picture of table rows needs in addition to the values: names of columns, and the rows as points."""

    columns: Sequence[str]  # names of the columns
    points: np.ndarray  # [n, 2], the rows that are drawn, projected to the plane
    data_points: np.ndarray | None = None  # [m, 2], the rows of the data, projected to the plane


def draw_rows(x: np.ndarray, view: RowView, data: np.ndarray | None = None) -> Figure:
    """Draw generated rows [n, d] over those of the data [m, d]; if n is 0, only the data."""
    if x.shape[1] > MOST_COLUMNS:
        figure, (left, right) = new_figure(12.5, 5.0, columns=2)
        _draw_plane(left, view)
        _draw_band(right, x, data)
        return _with_legend(figure, left)
    across = min(x.shape[1], _ACROSS)
    down = math.ceil(x.shape[1] / across)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, max(4.6, 1.25 * down + 0.4)), layout="constrained")
    grid = figure.add_gridspec(down, across + 1, width_ratios=(2.9, *(1,) * across))
    plane = styled(figure.add_subplot(grid[:, 0]))
    _draw_plane(plane, view)
    for j, name in enumerate(view.columns):
        axes = styled(figure.add_subplot(grid[j // across, 1 + j % across]))
        _draw_column(axes, x[:, j], None if data is None else data[:, j], name)
    return _with_legend(figure, plane)


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    """Add a legend of what is drawn in `axes` below all axes of the figure, and return the figure."""
    handles, labels = axes.get_legend_handles_labels()
    where: Any = {"loc": "outside lower left", "ncols": 2, "frameon": False, "markerscale": 2}
    figure.legend(handles, labels, labelcolor=SOFT, fontsize=9, **where)
    return figure


def _draw_plane(axes: Axes, view: RowView) -> None:
    """Draw rows as points in the plane in which the data varies most.

    At most as many generated rows as real ones are drawn, so that they do not hide the real ones.
    """
    shown = view.points if view.data_points is None else view.points[: len(view.data_points)]
    scatter(axes, shown, view.data_points)
    axes.set_anchor("N")  # at the top, next to the first row of histograms
    axes.set_title("the plane where the data varies most (PCA)", color=INK, fontsize=9.5, loc="left")


def _draw_column(axes: Axes, x: np.ndarray, data: np.ndarray | None, name: str) -> None:
    """Draw histograms of one column: generated values [n] over those of the data [m].

    The limits of the axis are those of the data; samples beyond them are counted in the outermost bins.
    """
    x = x[np.isfinite(x)]
    reference = data if data is not None and len(data) else x
    if len(reference):
        low, high = float(reference.min()), float(reference.max())
        margin = 0.08 * (high - low) or max(abs(low), 1.0) * 0.1
        bins: list[float] = np.linspace(low - margin, high + margin, _BINS + 1).tolist()
        if data is not None:
            axes.hist(data, bins, density=True, color=DATA if len(x) else INK, alpha=0.55 if len(x) else 0.75)
        if len(x):
            inside = np.clip(x, bins[0], bins[-1])
            axes.hist(inside, bins, density=True, histtype="step", color=GENERATED, lw=1.4)
        axes.set_xlim(bins[0], bins[-1])
        ends = [low, high] if high > low else [low]
        axes.set_xticks(ends, [f"{value:.4g}" for value in ends], fontsize=7)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    short = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    short = short.replace("$", r"\$")  # not a formula
    axes.set_title(short, color=INK, fontsize=8, loc="left", pad=3)


def _draw_band(axes: Axes, x: np.ndarray, data: np.ndarray | None) -> None:
    """Draw the median and the middle 80 % of every column, from left to right, of data [m, d] and of rows [n, d]."""
    places = np.arange(1, x.shape[1] + 1)
    for rows, colour, label in ((data, DATA, "data"), (x, GENERATED, "generated")):
        if rows is None or not len(rows):
            continue
        low, middle, high = np.nanpercentile(np.where(np.isfinite(rows), rows, np.nan), (10, 50, 90), axis=0)
        axes.fill_between(places, low, high, color=colour, alpha=0.3, lw=0)
        axes.plot(places, middle, color=colour, lw=1.3, label=label)
    title = f"{x.shape[1]} columns in their order: median, and 80 % of the rows"
    axes.set_title(title, color=INK, fontsize=9.5, loc="left")
    axes.set_xlabel("number of the column", color=INK)
