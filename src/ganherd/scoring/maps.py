"""Draw samples and data: t-SNE maps, class histograms side by side, and the coverage of known modes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ganherd.metrics.modes import POINTS, THIN, WITHIN, Coverage, Modes, assign, coverage
from ganherd.util.errors import UserError
from ganherd.viz import pictures
from ganherd.viz.pictures import DATA, GENERATED, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# the data in grey, then the groups that are compared with it; colours differ in lightness, too
COLOURS = (DATA, GENERATED, "#e08a1e", "#7c3aed", "#0f9d76", "#d6336c")
FAR, MISSED = "#e08a1e", "#e5484d"
MOST = 1000  # rows of each group in a t-SNE map; more would take minutes
PERPLEXITY = 30.0
_PER_ROW = 4  # panels
_TSNE = "t-SNE: neighbours are near; distances far apart and axes mean nothing"


def embed(groups: Mapping[str, np.ndarray], seed: int = 0, most: int = MOST) -> dict[str, np.ndarray]:
    """Return one t-SNE map of all groups together: float [n, 2] for the rows of each, at most `most`, drawn by the seed.

    Rows are flattened. Of rows with more than 50 numbers the first 50 principal components are taken.

    Raises:
        UserError: There are fewer than 5 rows, all rows are equal, or some are not finite.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    subsets = {name: _some(np.asarray(rows), seed, most) for name, rows in groups.items() if len(rows)}
    if not subsets:
        raise UserError("a map needs at least one row.")
    flat = np.concatenate([rows.reshape(len(rows), -1).astype(np.float32) for rows in subsets.values()])
    if not np.isfinite(flat).all():
        raise UserError("a map was asked of rows that hold NaN or infinity.")
    if len(flat) < 5:
        raise UserError(f"a t-SNE map needs at least 5 rows in all, not {len(flat)}.")
    if (flat == flat[0]).all():  # t-SNE would divide by their spread, and crash the process
        raise UserError(f"all {len(flat):,} rows of a map are equal: there is nothing to draw.")
    if min(flat.shape) > 50:
        flat = PCA(50, svd_solver="randomized", random_state=seed).fit_transform(flat)
    perplexity = min(PERPLEXITY, (len(flat) - 1) / 3)
    # t-SNE's first steps depend on the scale; in float64, squares of large numbers do not overflow
    centred = flat - flat.mean(0, dtype=np.float64)
    flat = (centred / max(float(centred.std()), 1e-300)).astype(np.float32)
    if flat.shape[1] == 1:  # t-SNE starts from two principal components
        flat = np.pad(flat, ((0, 0), (0, 1)))
    points = TSNE(2, perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(flat)
    edges = np.cumsum([len(rows) for rows in subsets.values()])[:-1]
    return dict(zip(subsets, np.split(points, edges), strict=True))


def _some(rows: np.ndarray, seed: int, most: int) -> np.ndarray:
    """Return at most this many of the rows, drawn by the seed."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(np.random.default_rng([seed, 0x75E]).permutation(len(rows))[:most])]


def draw_map(points: Mapping[str, np.ndarray], title: str = "", together: bool = True) -> Figure:
    """Draw the groups of a t-SNE map [n, 2]: the first, the data, in grey below the others.

    Args:
        points: The points of each group.
        title: The title of the figure.
        together: Draw all groups in one panel, instead of one panel for each with the data.
    """
    names = list(points)
    if not names:
        raise UserError("a map needs at least one group.")
    others = names[1:]
    panels = [others] if together or len(others) < 2 else [[name] for name in others]
    colour = dict(zip(names, [COLOURS[i % len(COLOURS)] for i in range(len(names))], strict=True))
    figure, axes = _map_panels(points, len(panels), 4.8, 5.0, title)
    for a, shown in zip(axes, panels, strict=True):
        for name in [names[0], *shown]:
            below = name == names[0]
            at = points[name]
            a.scatter(
                at[:, 0],
                at[:, 1],
                s=11 if below else 9,
                c=colour[name],
                alpha=0.5 if below else 0.65,
                linewidths=0,
                rasterized=True,
                label=f"{name} ({len(at):,})",
            )
        a.legend(
            frameon=False, labelcolor=INK, markerscale=2, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(-0.01, 1),
            borderaxespad=0.2, columnspacing=1.2, handletextpad=0.2,
        )  # fmt: skip
    return figure


def _map_panels(
    points: Mapping[str, np.ndarray], panels: int, width: float, height: float, title: str
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, without points yet; the axes of each span all of `points` [n, 2]."""
    everything = np.concatenate(list(points.values()))
    low, high = everything.min(0), everything.max(0)
    margin = 0.05 * np.maximum(high - low, 1e-9)
    figure, axes = pictures.new_figure(width * panels + 0.2, height, columns=panels)
    for a in axes:
        a.set(xticks=[], yticks=[])
        a.grid(False)
        a.spines[:].set_visible(True)
        a.spines[:].set_color(INK)
        a.spines[:].set_alpha(0.2)
        a.set_xlim(low[0] - margin[0], high[0] + margin[0])
        a.set_ylim(low[1] - margin[1], high[1] + margin[1])
    _title(figure, title)
    figure.supxlabel(_TSNE, color=INK, fontsize=8)
    return figure, axes


def draw_class_map(
    points: Mapping[str, np.ndarray], classes: Mapping[str, np.ndarray], labels: Sequence[str], title: str = ""
) -> Figure:
    """Draw a t-SNE map with a panel for each group, coloured by class (-1: grey) and with the names of the classes."""
    from matplotlib import colormaps

    colours = colormaps["tab20" if len(labels) > 10 else "tab10"]
    figure, axes = _map_panels(points, len(points), 4.6, 4.9, title)
    for a, (name, at) in zip(axes, points.items(), strict=True):
        y = np.asarray(classes[name])
        if len(y) != len(at):
            raise UserError(f"{name} has {len(at):,} points on the map and {len(y):,} classes.")
        paint = [colours(int(k) % colours.N) if k >= 0 else DATA for k in y]
        a.scatter(at[:, 0], at[:, 1], s=9, c=paint, alpha=0.6, linewidths=0, rasterized=True)
        for k in np.unique(y[y >= 0]):
            if (y == k).sum() >= 5:
                middle = np.median(at[y == k], 0)
                box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75}
                a.text(middle[0], middle[1], labels[k], ha="center", va="center", fontsize=9, color="black", bbox=box)
        a.set_title(f"{name} ({len(at):,})", color=INK, fontsize=10, loc="left")
    return figure


def draw_histograms(
    shares: Mapping[str, np.ndarray], labels: Sequence[str], expected: np.ndarray | None = None, title: str = ""
) -> Figure:
    """Draw the shares of the classes [classes] of each group as bars side by side, and the expected shares as marks."""
    names, classes = list(shares), len(labels)
    if not names or any(len(values) != classes for values in shares.values()):
        raise UserError(f"a class histogram needs groups with one share for each of the {classes} classes.")
    figure, (axes,) = pictures.new_figure(min(13.0, max(4.5, 1.4 + 0.23 * classes * max(2, len(names)))), 3.0)
    at, width = np.arange(classes), 0.8 / len(names)
    own = COLOURS[1:]
    for i, name in enumerate(names):
        left = at + (i - (len(names) - 1) / 2) * width
        axes.bar(left, shares[name], width * 0.92, color=own[i % len(own)], alpha=0.88, label=name)
    if expected is not None:
        axes.hlines(expected, at - 0.44, at + 0.44, color=INK, lw=1.6, label="expected")
    long = max((len(name) for name in labels), default=0) > 3 and classes > 4
    if classes > 30:
        axes.set_xticks(at, labels, rotation=90, fontsize=6)
    else:
        axes.set_xticks(at, labels, rotation=40 if long else 0, ha="right" if long else "center")
    axes.set_xlim(-0.6, classes - 0.4)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.set_ylabel("share of samples", color=INK, fontsize=9)
    axes.set_xlabel("class", color=INK, fontsize=9)
    _title(figure, title)
    _legend_above(figure, axes, len(names) + (expected is not None))
    return figure


def _legend_above(figure: Figure, axes: Axes, entries: int) -> None:
    """Put the legend above the axes, in as few lines as fit the width of the figure; each further line makes it higher."""
    for columns in range(min(4, entries), 0, -1):
        legend = axes.legend(
            frameon=False, labelcolor=INK, fontsize=8, ncols=columns, loc="lower left", bbox_to_anchor=(-0.01, 1)
        )
        legend.set_in_layout(False)  # while it is measured: too wide a legend would leave no room for the axes
        figure.draw_without_rendering()
        if legend.get_window_extent().width <= axes.bbox.width:
            break
    legend.set_in_layout(True)
    figure.set_figheight(figure.get_figheight() + 0.18 * (math.ceil(entries / columns) - 1))


def draw_coverage(groups: Mapping[str, np.ndarray], modes: Modes) -> Figure:
    """Draw samples [n, 2] over known modes, a panel for each group.

    Samples within 3 standard deviations of a mode are blue, others orange. Each mode is a circle: red and crossed if no
    sample of high quality captured it, orange if few did.
    """
    if not groups or modes.means.shape[1] != 2:
        raise UserError("a coverage picture needs samples and modes in the plane.")
    rows = math.ceil(len(groups) / _PER_ROW)
    columns = math.ceil(len(groups) / rows)
    figure, grid = _grid(columns, rows)
    for a, (name, x) in zip(grid, groups.items(), strict=False):
        _draw_covered(a, np.asarray(x), modes)
        covered = coverage(x, modes)
        a.set_title(f"{name}:\n{_words(covered)}", color=INK, fontsize=9, loc="left")
    for a in grid[len(groups) :]:
        a.set_visible(False)
    if (engine := figure.get_layout_engine()) is not None:
        engine.set(h_pad=0.1)  # type: ignore[call-arg]  # room between a panel's last line and the next one's title
    _title(figure, modes.about)
    words = (
        f"points: blue within {WITHIN:g} std of a mode (its circle), orange beyond",
        "circles: red with a cross for a lost mode,",
        f"orange for one with under {100 * THIN:g} % of its share",
    )
    between = ("\n", "\n") if columns == 1 else ("\n" if columns == 2 else "; ", " ")
    figure.supxlabel(words[0] + between[0] + words[1] + between[1] + words[2], color=INK, fontsize=8)
    return figure


def _draw_covered(axes: Axes, x: np.ndarray, modes: Modes) -> None:
    """Draw one panel of a coverage picture."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Ellipse

    good = assign(x, modes)[1] < WITHIN
    covered = coverage(x, modes)
    seen = covered.counts > 0
    kind = np.where(seen, np.where(covered.represented, 2, 1), 0)
    low, high = modes.means.min(0), modes.means.max(0)
    centre, half = (low + high) / 2, 0.62 * float((high - low).max())
    # circles have at least a visible size
    sizes = np.maximum(2 * WITHIN * modes.stds, 0.055 * half)
    for number, colour in enumerate((MISSED, FAR, INK)):
        some = kind == number
        shapes = [Ellipse((m[0], m[1]), w, h) for m, (w, h) in zip(modes.means[some], sizes[some], strict=True)]
        width = 0.9 if colour == INK else 1.6
        axes.add_collection(PatchCollection(shapes, facecolor="none", edgecolor=colour, lw=width, alpha=0.75))
    shown = slice(None, POINTS)
    for mask, colour, size in ((~good, FAR, 7), (good, GENERATED, 6)):
        at = x[shown][mask[shown]]
        axes.scatter(at[:, 0], at[:, 1], s=size, c=colour, alpha=0.55, linewidths=0, rasterized=True)
    lost = modes.means[~seen]
    axes.scatter(lost[:, 0], lost[:, 1], marker="x", s=34, c=MISSED, lw=1.6, zorder=3)
    axes.set_xlim(centre[0] - half, centre[0] + half)
    axes.set_ylim(centre[1] - half, centre[1] + half)
    axes.set_aspect("equal")
    outside = len(x) - int((np.abs(x - centre) <= half).all(1).sum())
    if outside:
        axes.set_xlabel(f"{outside:,} of {len(x):,} outside", color=INK, fontsize=8)


def _words(covered: Coverage) -> str:
    """Return a coverage in words."""
    thin = covered.captured - int(covered.represented.sum())
    few = f" ({thin} barely)" if thin else ""
    return f"{covered.captured} of {covered.modes} modes{few}, {100 * covered.high_quality:.1f} % high quality"


def _grid(columns: int, rows: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in rows and columns."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.9 * columns + 0.2, 4.0 * rows + 0.6), layout="constrained")
    axes = [a for line in figure.subplots(rows, columns, squeeze=False) for a in line]
    for a in axes:
        a.spines[:].set_color(INK)
        a.spines[:].set_alpha(0.25)
        a.tick_params(colors=INK, labelsize=8, length=3)
    return figure, axes


def _title(figure: Figure, title: str) -> None:
    """Set the title of a figure, if there is one."""
    if title:
        figure.suptitle(title, color=INK, fontsize=11, x=0.01, ha="left")
