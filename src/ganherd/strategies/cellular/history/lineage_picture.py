"""Draw a grid over time: the founder of each cell, and values of every cell over the iterations.

The founder of a cell is the cell in which the ancestor of its best net began the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.strategies.cellular.history.lineage import Lineage
from ganherd.strategies.cellular.history.topology_picture import INK_ON_PAPER, positions, show_cells
from ganherd.strategies.cellular.topology import Topology
from ganherd.viz.pictures import GENERATED, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

SHOWN = 6  # pictures of the grid side by side
MOST = 400  # most columns (iterations) in a map
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def colours(cells: int) -> np.ndarray:
    """Return an RGB colour for each of C cells or names, float [C, 3]; consecutive ones differ much in hue."""
    from matplotlib.colors import hsv_to_rgb

    number = np.arange(cells)
    hue = (number * 0.61803398875) % 1.0  # The golden section spreads any number of hues.
    tone = np.stack([hue, np.where(number % 2, 0.45, 0.6), np.where(number % 3 == 2, 0.8, 0.97)], 1)
    return np.asarray(hsv_to_rgb(tone))


def draw_grids(lineage: Lineage, topology: Topology) -> Figure:
    """Draw the grid at the start and at some iterations, each cell with the number and the colour of its founder.

    The founder is the cell from which the net there descends. An arrow shows a net that was just copied from a
    neighbour.
    """
    from matplotlib.patches import Circle, FancyArrowPatch

    cells, at = len(topology), positions(topology)
    shown = np.unique(np.linspace(-1, len(lineage.iterations) - 1, SHOWN).round().astype(int))
    size = np.ptp(at, axis=0) + 1.0
    inch = min(0.42, 1.75 / float(size[0]), 2.4 / float(size[1]))
    figure, panels = new_figure(len(shown) * (float(size[0]) * inch + 0.12), float(size[1]) * inch + 0.42, len(shown))
    tone = colours(cells)
    for axes, number in zip(panels, shown.tolist(), strict=True):
        show_cells(axes, at.min(0) - 0.55, at.max(0) + 0.55)
        title = "start" if number < 0 else f"iteration {lineage.iterations[number] + 1:,}"
        axes.set_title(title, color=INK, fontsize=9)
        founder = np.arange(cells) if number < 0 else lineage.founder[number]
        for cell, place in enumerate(at):
            middle = (float(place[0]), float(place[1]))
            axes.add_patch(Circle(middle, 0.42, facecolor=tone[founder[cell]], edgecolor="none", zorder=2))
            axes.text(
                *middle, str(founder[cell]), ha="center", va="center_baseline", fontsize=max(4.0, 22 * inch), color=INK_ON_PAPER,
                zorder=4,
            )  # fmt: skip
            start = at[lineage.source[number][cell]] if number >= 0 else place
            step = place - start
            if 0 < np.abs(step).max() <= 1:  # Arrows around the torus would cross the whole grid.
                ends = (start + 0.34 * step, place - 0.34 * step)
                axes.add_patch(
                    FancyArrowPatch(*map(tuple, ends), arrowstyle="->", mutation_scale=7, lw=1, color=INK, zorder=3)
                )
    return figure


def draw_founders(lineage: Lineage) -> Figure:
    """Draw a map of cells × iterations in the colours of the founders, to show which of them take over."""
    columns = _thin(len(lineage.iterations))
    figure, axes = _map_figure(lineage.founder.shape[1])
    image = colours(lineage.founder.shape[1])[lineage.founder[columns].T]  # [C, T, 3]
    _map(axes, image, lineage.iterations[columns])
    return figure


def draw_map(values: np.ndarray, at: np.ndarray, label: str, *, log: bool = False) -> Figure:
    """Draw a value of every cell over the iterations as a map, from pale to blue; NaN is left blank.

    Args:
        values: [T, C], for T iterations and C cells.
        at: int64 [T], the numbers of the iterations.
        label: The label of the colour bar.
        log: Use a logarithmic scale, if the values are positive and span more than a factor of 3.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    columns = _thin(len(values))
    shown = np.ma.masked_invalid(values[columns].T)
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 1.0)
    if 0 < (most := max(abs(low), abs(high))) < 0.01:  # Small values, such as learning rates, share one power of ten.
        power = int(np.floor(np.log10(most)))
        shown, low, high = shown / 10.0**power, low / 10.0**power, high / 10.0**power
        label = f"{label} × 10{str(power).translate(_RAISED)}".strip()
    log = log and low > 0 and high > 3 * low
    high = high if high > low else low + (abs(low) or 1.0) * 1e-3
    figure, axes = _map_figure(values.shape[1])
    scale = LinearSegmentedColormap.from_list("pale", ["#eef4ff", GENERATED, "#10204a"])
    drawn = _map(axes, shown, at[columns], cmap=scale, norm=(LogNorm if log else Normalize)(low, high))
    figure.get_layout_engine().set(rect=(0, 0, 0.975, 1))  # type: ignore[union-attr, call-arg]  # The page's font may be wider.
    bar = figure.colorbar(drawn, ax=axes, pad=0.01, aspect=12)
    if not log:
        bar.formatter = ScalarFormatter(useOffset=False)
        bar.locator = MaxNLocator(nbins=5)
        bar.update_ticks()
    bar.set_label(label, color=INK, fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=7, length=2, which="both")
    return figure


def draw_choices(chosen: Sequence[Sequence[str]], at: np.ndarray) -> Figure:
    """Draw which name, such as that of a loss, every cell had over the iterations, as a map with a legend.

    Args:
        chosen: The names of the C cells for each of T iterations.
        at: int64 [T], the numbers of the iterations.
    """
    from matplotlib.patches import Patch

    names = sorted({name for row in chosen for name in row})
    tone = colours(len(names))
    number = np.array([[names.index(name) for name in row] for row in chosen], np.int64)
    columns = _thin(len(number))
    figure, axes = _map_figure(number.shape[1])
    _map(axes, tone[number[columns].T], at[columns])
    keys = [Patch(facecolor=tone[i], label=name) for i, name in enumerate(names)]
    axes.legend(
        handles=keys, frameon=False, labelcolor=INK, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1)
    )
    return figure


def draw_shares(drawn: Mapping[str, np.ndarray], at: np.ndarray) -> Figure:
    """Draw the share of each name over the iterations: a line for all cells together, and a dot for each cell.

    Args:
        drawn: For each name, how often each of C cells drew it in each of T iterations, int64 [T, C].
        at: int64 [T], the numbers of the iterations.
    """
    figure, (axes,) = new_figure(9.2, 2.4)
    columns = _thin(len(at))
    every = np.sum(list(drawn.values()), 0)[columns]  # [T, C]
    for (name, counts), tone in zip(drawn.items(), colours(len(drawn)), strict=True):
        shown, x = counts[columns], at[columns] + 1
        shares = shown / np.maximum(every, 1)
        axes.plot(
            np.repeat(x, shares.shape[1]), shares.reshape(-1), ".", ms=4, color=tone, alpha=0.5, mew=0, rasterized=True
        )
        label = f"{name}, {counts.sum():,} times"
        axes.plot(
            x, shown.sum(1) / np.maximum(every.sum(1), 1), "o-" if len(x) == 1 else "-", lw=2, color=tone, label=label
        )
    axes.set_ylim(0, 1)
    axes.set_xlabel("iteration", color=INK, fontsize=9)
    axes.set_ylabel("share of the batches", color=INK, fontsize=9)
    axes.locator_params(axis="x", nbins=10, integer=True)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _map_figure(cells: int) -> tuple[Figure, Axes]:
    """Return an empty figure for a map of this many cells × iterations, and its axes."""
    figure, (axes,) = new_figure(9.2, float(np.clip(0.11 * cells, 1.1, 3.6)) + 0.55)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("cell", color=INK, fontsize=9)
    axes.set_xlabel("iteration", color=INK, fontsize=9)
    return figure, axes


def _map(axes: Axes, image: np.ndarray, at: np.ndarray, **options: Any) -> AxesImage:
    """Draw an image [C, T, …] whose columns are the iterations `at` [T], labelled from 1 on; return the drawn image."""
    cells, first, last = len(image), int(at[0]) + 1, int(at[-1]) + 1
    extent = (first - 0.5, last + 0.5, cells - 0.5, -0.5)
    drawn = axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent, **options)
    axes.set_yticks(range(0, cells, max(1, -(-cells // 16))))
    axes.locator_params(axis="x", nbins=10, integer=True)
    return drawn


def _thin(length: int) -> np.ndarray:
    """Return the indices of at most 400 of `length` columns, evenly spaced, including the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, MOST)).round().astype(int))
