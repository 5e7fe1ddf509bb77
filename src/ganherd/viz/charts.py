"""Draw charts of the numbers of a run: losses over the steps, values of classes as bars, and how often nets trained together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.viz.pictures import GENERATED, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISCRIMINATOR, ALARM = "#e08a1e", "#e5484d"
FEW = 14  # classes up to which a bar chart is narrow enough to be placed next to others
TROUBLES = ("nan", "diverged", "alarm", "repair")  # events about the health of a member
_MEANS = ("loss_g", "loss_d", "real", "fake")  # numbers of a record that are means over its steps
_MOST_LABELLED = 12  # members up to which the cells of a map of meetings are labelled
_LOSSES = {"loss_g": ("generator loss", GENERATED), "loss_d": ("discriminator loss", DISCRIMINATOR)}


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


def _number(value: Any) -> float:
    """Return a value of a record as a float; records hold `nan` and `inf` as text. Other text and None become NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
