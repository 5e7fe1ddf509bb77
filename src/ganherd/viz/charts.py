"""Draw how often each generator of a run trained with each discriminator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ganherd.viz.pictures import GENERATED, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LABELLED = 12  # with more members than this, cells of the map have no numbers


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
