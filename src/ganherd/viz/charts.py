"""Draw charts of the numbers of a run: losses over the steps, values of classes as bars, and how often nets trained together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.viz.pictures import DATA, GENERATED, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISCRIMINATOR, ALARM = "#e08a1e", "#e5484d"
FEW = 14  # classes up to which a bar chart is narrow enough to be placed next to others
TROUBLES = ("nan", "diverged", "alarm", "repair")  # events about the health of a member
_MEANS = ("loss_g", "loss_d", "real", "fake")  # numbers of a record that are means over its steps
_MOST_LABELLED = 12  # members up to which the cells of a map of meetings are labelled
_LOSSES = {"loss_g": ("generator loss", GENERATED), "loss_d": ("discriminator loss", DISCRIMINATOR)}


def draw_losses(
    metrics: Sequence[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]] = (),
    which: Sequence[str] = ("loss_g", "loss_d"),
) -> Figure:
    """Draw losses over the steps, with a panel for each key of `which`: members as thin lines, their mean bold."""
    figure, panels = new_figure(4.6 * len(which), 3.1, columns=len(which))
    lines = _thin(merge_short_end(metrics), 500)
    steps = np.array([line["step"] for line in lines], float)
    trouble = sorted({int(e["step"]) for e in events if e.get("event") in TROUBLES and "step" in e})
    for axes, key in zip(panels, which, strict=True):
        title, colour = _LOSSES[key]
        axes.set_title(title, color=INK, fontsize=10, loc="left")
        axes.set_xlabel("step", color=INK)
        axes.set_ylabel("loss, mean over a record", color=INK, fontsize=9)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=6)
        values = loss_table(lines, key)  # [records, N]
        if not np.isfinite(values).any():
            axes.text(0.5, 0.5, "nothing recorded yet", color=INK, ha="center", transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
            continue
        _draw_members(axes, steps, values, colour)
        for step in trouble[:200]:
            axes.axvline(step, color=ALARM, lw=0.9, alpha=0.6, ls=(0, (2, 2)))
    return figure


def merge_short_end(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records, the last two of them as one if the last covers less than half as many steps as the one before.

    The means of a record over a step or two are far from those over fifty: a curve would end in a spike that means nothing.

    >>> lines = [{"step": step, "loss_g": [loss]} for step, loss in ((50, 1.0), (100, 1.0), (110, 7.0))]
    >>> merge_short_end(lines)[-1]
    {'step': 110, 'loss_g': [2.0]}
    """
    if len(metrics) < 2:
        return list(metrics)
    start = metrics[-3]["step"] if len(metrics) > 2 else 0
    before, last = metrics[-2], metrics[-1]
    weights = before["step"] - start, last["step"] - before["step"]
    if not 0 < 2 * weights[1] < weights[0]:
        return list(metrics)
    means = {}
    for key in _MEANS:
        if last.get(key) and before.get(key):
            pairs = zip(before[key], last[key], strict=False)
            means[key] = [(_number(a) * weights[0] + _number(b) * weights[1]) / sum(weights) for a, b in pairs]
    return [*metrics[:-2], {**before, **last, **means}]


def loss_table(metrics: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Return losses as float64 [records, N]; NaN for missing values."""
    rows = [[_number(v) for v in line.get(key) or []] for line in metrics]
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


def _draw_members(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str) -> None:
    values = np.where(np.isfinite(values), values, np.nan)
    alive = np.isfinite(values).any(1)
    steps, values = steps[alive], values[alive]
    mark = "o" if len(steps) == 1 else None
    if values.shape[1] > 40:  # a band is clearer than many lines, and keeps the file small
        low, high = np.nanquantile(values, (0.05, 0.95), axis=1)
        axes.fill_between(steps, low, high, color=colour, alpha=0.22, lw=0, label="90 % of the members")
    elif values.shape[1] > 1:
        axes.plot(steps, values, color=colour, lw=0.7, alpha=0.4, marker=mark, ms=3)
    axes.plot(steps, np.nanmean(values, 1), color=colour, lw=2.2, marker=mark, label="mean")
    size = np.abs(values[np.isfinite(values)])
    typical = float(np.median(size))
    if size.max() > 100 * max(typical, 1e-3):
        axes.set_yscale("symlog", linthresh=max(typical, 1e-3))
    if values.shape[1] > 40:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8)


def draw_bars(
    values: Mapping[str, float | None],
    *,
    title: str = "",
    expected: Mapping[str, float] | None = None,
    is_share: bool = False,
) -> Figure:
    """Draw a bar for each class, with a line at 1, which is best, or a mark at each expected value.

    Args:
        is_share: The values are shares, which the axis has in percent.
    """
    names = list(values)[:100]
    heights = [0.0 if values[n] is None else float(values[n] or 0.0) for n in names]
    few = max(3.5, 0.26 * len(names) + 0.4)
    figure, (axes,) = new_figure(few if len(names) <= FEW else 11.0, 2.5)
    at = np.arange(len(names))
    axes.bar(at, heights, width=0.68, color=GENERATED, alpha=0.85, label="generated")
    if expected is None:
        axes.axhline(1.0, color=DATA, lw=1.4, ls=(0, (4, 2)))
    else:
        marks = [float(expected.get(n, 0.0)) for n in names]
        axes.hlines(marks, at - 0.42, at + 0.42, color=INK, lw=2, label="expected")
        axes.legend(frameon=False, labelcolor=INK, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    for i, name in enumerate(names):
        if values[name] is None:
            axes.text(i, 0, "–", ha="center", va="bottom", color=INK)
    long = max((len(n) for n in names), default=0) > 3 and len(names) > 4
    axes.set_xticks(at, names, rotation=40 if long else 0, ha="right" if long else "center")
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_title(title, color=INK, fontsize=10, loc="left")
    if is_share:
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")
    return figure


def draw_pair_counts(counts: np.ndarray) -> Figure:
    """Draw how often each generator trained with each discriminator, as percentages of the generator's steps.

    Args:
        counts: The number of steps of each pair, [generators, discriminators].

    >>> draw_pair_counts(np.array([[30, 70], [70, 30]])).axes[0].get_xlabel()
    'discriminator'
    """
    from matplotlib.colors import LinearSegmentedColormap

    n = len(counts)
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)  # [N, N]
    inch = min(0.55, 6.5 / n)
    figure, (axes,) = new_figure(max(n * inch + 1.9, 3.2), n * inch + 1.2)
    colours = LinearSegmentedColormap.from_list("met", ["white", GENERATED])
    drawn = axes.imshow(
        share, cmap=colours, vmin=0, vmax=max(float(share.max(initial=0)), 1e-9), interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    step = max(1, -(-n // 20))
    axes.set_xticks(range(0, n, step))
    axes.set_yticks(range(0, n, step))
    axes.set_xlabel("discriminator", color=INK)
    axes.set_ylabel("generator", color=INK)
    if n <= _MOST_LABELLED:
        for (g, d), value in np.ndenumerate(share):
            dark = value > 0.7 * share.max()
            axes.text(d, g, f"{value:.0f}", ha="center", va="center", fontsize=9, color="white" if dark else "#1c2028")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.03)
    bar.set_label("% of its steps", color=INK, fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=2)
    return figure


def _thin(lines: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most `most` lines, evenly spread, including the first and the last."""
    if len(lines) <= most:
        return list(lines)
    return [lines[i] for i in np.linspace(0, len(lines) - 1, most).round().astype(int)]


def _number(value: Any) -> float:
    """Return a value of a record as a float; records hold `nan` and `inf` as text. Other text and None become NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
