"""Write the files of a finished sweep: the best trial as a recipe and a mixture, and a plot of each varied setting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.metrics.metric_registry import METRICS, title_of
from ganherd.recipe import recipe_file
from ganherd.sweep.ranking import RankedTrial, best_recipe, is_finite, ranked
from ganherd.sweep.search_space import Dimension, parse_dimension
from ganherd.sweep.sweep_record import SweepRecord
from ganherd.util.files import atomic_write
from ganherd.viz import pictures
from ganherd.viz.pictures import DATA, GENERATED, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEST = "#1a9f6b"


def write(record: SweepRecord, folder: Path) -> dict[str, Path]:
    """Write the files of a finished sweep into its folder; return their paths by "plot", "recipe" and "mixture"."""
    written = {"plot": pictures.save(draw(record), folder / "sweep.png")}
    best = ranked(record)[0]
    if best.score.value is None:
        return written
    recipe = folder / "best.yaml"
    atomic_write(recipe, recipe_file.dump(best_recipe(record)))
    return written | {"recipe": recipe, "mixture": _save_mixture(record, best, folder)}


def _save_mixture(record: SweepRecord, best: RankedTrial, folder: Path) -> Path:
    """Save the mixture (trained generators) of the best trial's first seed; `ganherd sample` reads it like a run."""
    from ganherd.mixture import mixture as mixtures

    group = next(group for group in record.groups if best.number in group.trials)
    loaded = mixtures.load(folder / group.run, trust_code=True)
    loaded.only_replica(group.trials.index(best.number) * record.seeds).save(folder / "best")
    return folder / "best"


def draw(record: SweepRecord) -> Figure:
    """Draw the score against each varied setting: a dot with a 95 % interval for each trial.

    Trials that were stopped early are faint.
    """
    dimensions = [parse_dimension(text) for text in record.vary]
    trials = [trial for trial in ranked(record) if is_finite(trial.score)]
    columns = min(3, len(dimensions))
    lines = -(-len(dimensions) // columns)
    figure, panels = pictures.new_figure(4.4 * columns, 3.4 * lines + 0.4, columns, lines)
    for place, axes in enumerate(panels):
        if place >= len(dimensions):
            axes.set_visible(False)
            continue
        axes.set_xlabel(dimensions[place].key, color=INK)
        if place % columns == 0:
            axes.set_ylabel(f"{title_of(record.score)} ({METRICS[record.score].goal})", color=INK)
        _dots(axes, _positions(axes, dimensions[place], trials, record), trials, record)
    if trials:
        figure.suptitle(
            f"{len(record.trials)} trials of {Path(record.recipe).name}. Best: {trials[0].name}",
            x=0.01, ha="left", fontsize=10, color=INK,
        )  # fmt: skip
    if len(record.steps) > 1:
        note = f"Grey: stopped before step {record.steps[-1][0]:,}, with the score of that time. Bars: 95 % intervals."
        figure.supxlabel(note, x=0.01, ha="left", fontsize=8.5, color=INK)
    return figure


def _positions(axes: Axes, dimension: Dimension, trials: list[RankedTrial], record: SweepRecord) -> list[float]:
    """Set up the horizontal axis for a varied setting, and return the position of each trial on it."""
    values = [record.trials[trial.number][dimension.key] for trial in trials]
    if dimension.is_logarithmic:
        axes.set_xscale("log")
    if dimension.is_range:
        axes.set_xlim(dimension.low, dimension.high)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in dimension.values):
        return [float(value) for value in values]
    words = [str(value) for value in dimension.values]
    axes.set_xticks(range(len(words)), words)
    axes.set_xlim(-0.6, len(words) - 0.4)
    # shift dots sideways, so that trials with the same value do not hide each other
    aside = [0.25 * ((trial.number * 0.618) % 1.0 - 0.5) for trial in trials]
    return [words.index(str(value)) + offset for value, offset in zip(values, aside, strict=True)]


def _dots(axes: Axes, at: list[float], trials: list[RankedTrial], record: SweepRecord) -> None:
    """Draw a dot with its interval for each trial, at horizontal positions `at`.

    The best trial is green, others that trained to the end are blue, stopped ones are faint.
    """
    if not trials:
        axes.text(0.5, 0.5, "no trial could be scored", color=INK, ha="center", transform=axes.transAxes)
        return
    scores = np.array([trial.score.value for trial in trials], float)
    if scores.min() > 0 and scores.max() / scores.min() > 20:
        axes.set_yscale("log")
    last = record.steps[-1][0]
    for x, trial, value in zip(at, trials, scores, strict=True):
        is_best, is_whole = trial is trials[0], trial.step == last
        colour = _BEST if is_best else GENERATED if is_whole else DATA
        if trial.score.low is not None and trial.score.high is not None:
            axes.plot([x, x], [trial.score.low, trial.score.high], color=colour, lw=1, alpha=0.9 if is_whole else 0.35)
        size, order = (8, 3) if is_best else (5, 2)
        axes.plot([x], [value], "o", color=colour, ms=size, alpha=1 if is_whole else 0.45, zorder=order)
