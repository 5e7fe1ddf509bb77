"""Draw samples of several runs: points over the data, with a row for each data set, or images of every member."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ganherd.metrics.modes import POINTS, coverage, modes_of
from ganherd.report.figures.figure_runs import FigureRun, FigureSkipped, Log, left_out
from ganherd.util.errors import UserError
from ganherd.viz import pictures
from ganherd.viz.pictures import INK
from ganherd.viz.sheets import Heading, draw_sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ganherd.data.dataset import Dataset
    from ganherd.viz.pictures import Picture

PER_MEMBER = 16  # number of images of each member


def points(runs: Sequence[FigureRun], seed: int, log: Log) -> Iterator[tuple[str, str, Picture]]:
    """Draw the points of each data set next to samples of the runs trained on it; yield name, caption and picture.

    Like Figures 3 and 4 of the GAP paper.
    """
    flat = [run for run in runs if not run.mixture.is_image]
    if not flat:
        raise FigureSkipped("it is for points in the plane, and these are images")
    from matplotlib.figure import Figure

    by_data: dict[str, list[FigureRun]] = {}
    for run in flat:
        by_data.setdefault(run.dataset.digest, []).append(run)
    columns = 1 + max(len(each) for each in by_data.values())
    figure = Figure(figsize=(3.5 * columns, 4.2 * len(by_data)), layout="constrained")
    grid = figure.subplots(len(by_data), columns, squeeze=False)
    for row, each in zip(grid, by_data.values(), strict=True):
        data = each[0].dataset
        _panel(row[0], data, np.empty((0, 2)), f"{data.name}, {len(data.x):,} points")
        for axes, run in zip(row[1:], each, strict=False):
            log(f"{POINTS:,} points of {run.name}")
            x = run.mixture.sample(POINTS, seed=seed).x
            _panel(axes, data, x, f"{run.name}{_captured(x, data)}")
        for axes in row[1 + len(each) :]:
            axes.set_visible(False)
    many = any(run.mixture.replicas > 1 for run in flat)
    caption = f"The training data (grey) and {POINTS:,} samples of each mixture (blue), seed {seed}, not chosen"
    caption += "; of the first replica." if many else "."
    images = {run.name: "its data are images" for run in runs if run not in flat}
    yield "points", caption + left_out(images, "points", log), figure


def _captured(x: np.ndarray, data: Dataset) -> str:
    """Return in words how many modes of the data the samples [n, 2] capture; empty if the modes are unknown."""
    try:
        captured = coverage(x, modes_of(data))
    except UserError:
        return ""
    return f": {captured.captured} of {captured.modes} modes,\n{100 * captured.high_quality:.1f} % high quality"


def _panel(axes: Axes, data: Dataset, x: np.ndarray, title: str) -> None:
    pictures.scatter(axes, x, data.x)
    axes.set_title(title, color=INK, fontsize=9.5, loc="left")
    axes.xaxis.label.set_fontsize(9)
    axes.tick_params(colors=INK, labelsize=8, length=2)
    axes.spines[:].set_color(INK)
    axes.spines[:].set_alpha(0.25)


def grids(runs: Sequence[FigureRun], seed: int, log: Log) -> Iterator[tuple[str, str, Picture]]:
    """Draw images of the members of each run; yield name, caption and picture for each run.

    Like Figures 15 to 20 of the GAP paper. The best member by GAM-II, a tournament of all generators and
    discriminators, is marked.
    """
    seen = [run for run in runs if run.mixture.is_image]
    if not seen:
        raise FigureSkipped("it is for images, and these are points")
    for run in seen:
        mixture = run.mixture
        shown = min(mixture.members, pictures.MOST_ROWS // 2)
        log(f"{PER_MEMBER} images of each of {shown} members of {run.name}")
        rows, names = [], []
        for member in range(shown):
            rows.append(mixture.alone(member).sample(PER_MEMBER, seed=seed).x)
            names.append(_name(run, member))
        of = f" of {mixture.members}" if shown < mixture.members else ""
        caption = f"{run.name}: {PER_MEMBER} images of each of {shown}{of} members, seed {seed}, not chosen."
        name = re.sub(r"[^\w.-]+", "-", run.name).strip("-.") or "run"
        facts = [f"step {mixture.step:,}", f"{PER_MEMBER} images of each of {shown}{of} members", f"seed {seed}"]
        yield f"samples-{name}", caption, draw_sheet(rows, names, Heading(run.name, facts))


def _name(run: FigureRun, member: int) -> str:
    """Return a short name of a member for a row of images: its label or number, and its net if nets differ."""
    mixture = run.mixture
    mixed = len(mixture.breeds) > 1
    best = mixture.winner is not None and (mixture.winner.member, mixture.winner.replica) == (member, 0)
    label = int(mixture.label_of[member])
    name = mixture.labels[label] if label >= 0 else f"member {member}"
    name += f" ({mixture.generator(member)[0].net.name})" if mixed else ""
    return name + (" (best)" if best else "")
