"""Draw learning curves of the discriminators of several runs, on training data and on held-out data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ganherd.report.figures.figure_runs import COLOURS, FigureRun, FigureSkipped, Log, left_out
from ganherd.viz.pictures import INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ganherd.viz.pictures import Picture

_THICK, _THIN = 1.8, 0.8


def generalisation(runs: Sequence[FigureRun], seed: int, log: Log) -> Iterator[tuple[str, str, Picture]]:
    """Draw the discriminators' losses on training and on held-out data; yield name, caption and picture.

    Like Figures 6, 12 and 13 of the GAP paper.
    """
    known, missing = _known(runs)
    figure, (mean, one, gap) = new_figure(14.0, 4.2, columns=3)
    for colour, run in zip(_colours(len(known)), known, strict=True):
        epochs, trained, held = run.costs  # [T], [T, R, M]
        middle = {"train": trained.mean((1, 2)), "held out": held.mean((1, 2))}
        mean.plot(epochs, middle["train"], color=colour, lw=_THICK, label=f"{run.name}: train")
        mean.plot(epochs, middle["held out"], color=colour, lw=_THICK, ls=(0, (4, 2)), label=f"{run.name}: held out")
        mean.fill_between(epochs, *_band(held), color=colour, alpha=0.13, lw=0)
        one.plot(epochs, trained[:, 0, 0], color=colour, lw=_THIN, label=f"{run.name}: train")
        one.plot(epochs, held[:, 0, 0], color=colour, lw=_THIN, ls=(0, (4, 2)), label=f"{run.name}: held out")
        off = held - trained
        gap.plot(epochs, off.mean((1, 2)), color=colour, lw=_THICK, label=run.name)
        gap.fill_between(epochs, *_band(off), color=colour, alpha=0.13, lw=0)
    gap.axhline(0, color=INK, lw=0.8, alpha=0.5)
    titles = ("cost of the discriminators, mean over members", "the same of one member", "held out − train")
    for axes, title in zip((mean, one, gap), titles, strict=True):
        _finish(axes, title)
    mean.legend(frameon=False, labelcolor=INK, fontsize=8)
    gap.legend(frameon=False, labelcolor=INK, fontsize=8)
    tried_on = ", ".join(dict.fromkeys(f"{run.recipe.run.validation:,} {run.kind}" for run in known))
    yield (
        "generalisation",
        f"What the discriminators minimise, on {tried_on} that they train on (solid) and as many held-out ones "
        "(dashed), with the same fakes. Bands: one standard deviation over the members. The less held-out data costs "
        "beyond training data, the better a discriminator generalises." + left_out(missing, "generalisation", log),
        figure,
    )


def spread(runs: Sequence[FigureRun], seed: int, log: Log) -> Iterator[tuple[str, str, Picture]]:
    """Draw how much the discriminators' held-out losses differ between members; yield name, caption and picture.

    Like Figure 7 of the GAP paper.
    """
    recorded, missing = _known(runs)
    known = [run for run in recorded if run.costs[2].shape[2] > 1]
    if not known:
        raise FigureSkipped("members are compared, and these runs have one each")
    missing |= {run.name: "it has one member" for run in recorded if run not in known}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 1.55 * len(known) + 1.2), layout="constrained")
    grid = figure.add_gridspec(len(known), 2, width_ratios=(3, 1.3))
    lows, highs = zip(*((np.nanmin(held), np.nanmax(held)) for *_, held in (run.costs for run in known)), strict=True)
    margin = 0.04 * (max(highs) - min(lows))
    shares = []
    for row, (colour, run) in enumerate(zip(_colours(len(known)), known, strict=True)):
        axes = figure.add_subplot(grid[row, 0])
        epochs, _, held = run.costs
        axes.plot(epochs, held[:, 0], color=colour, lw=_THIN, alpha=0.55)
        axes.fill_between(epochs, *_band(held[:, :1]), color=colour, alpha=0.22, lw=0)
        _finish(axes, run.name)
        axes.set_ylim(min(lows) - margin, max(highs) + margin)
        axes.set_xlabel("epoch" if row == len(known) - 1 else "", color=INK)
        shares.append(held[len(held) // 2 :].std(2).mean(0))  # [R], of the second half
    side = figure.add_subplot(grid[:, 1])
    for row, (colour, own) in enumerate(zip(_colours(len(known)), shares, strict=True)):
        side.barh(row, own.mean(), color=colour, alpha=0.85, height=0.6)
        side.scatter(own, np.full(len(own), row), s=14, color=INK, zorder=3, linewidths=0)
    side.set_yticks(range(len(known)), [run.name for run in known])
    side.invert_yaxis()
    _finish(side, "std over members, second half")
    side.set_xlabel("", color=INK)
    yield (
        "spread",
        "Left: the cost of every member's discriminator on held-out data, and a band of one standard deviation over the "
        "members (first replica). Right: that standard deviation, averaged over the second half of the training; a dot for "
        "each replica." + left_out(missing, "spread", log),
        figure,
    )


def _known(runs: Sequence[FigureRun]) -> tuple[list[FigureRun], dict[str, str]]:
    """Return the runs with at least two records of finite costs, and by name why each other run is not drawn."""
    records = {run.name: int(np.isfinite(run.costs[1] + run.costs[2]).all((1, 2)).sum()) for run in runs}
    known = [run for run in runs if records[run.name] > 1]
    amount = known[0].recipe.run.validation if known else 256  # suggest the value of the other runs, for comparability
    absent = f"its records have no costs on held-out data; train it with --set run.validation={amount}"
    few = "it has fewer than two records in which the costs of all members are finite"
    whys = {run.name: few if len(run.costs[0]) else absent for run in runs if run not in known}
    if not known:
        raise FigureSkipped("; ".join(f"{name}: {why}" for name, why in whys.items()))
    return known, whys


def _band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean minus and plus one standard deviation, both [T], of values [T, replicas, members].

    The standard deviation is that over the members, averaged over replicas.
    """
    middle, off = values.mean((1, 2)), values.std(2).mean(1)
    return middle - off, middle + off


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, color=INK, fontsize=10, loc="left")
    axes.set_xlabel("epoch", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.grid(axis="y", color=INK, alpha=0.09, lw=0.8)
