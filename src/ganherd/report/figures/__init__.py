"""Figures of several runs beside each other, as those of the GAP paper: each as PNG and SVG, and all on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.report.figures import class_maps, learning_curves, sample_figures
from ganherd.report.figures.figure_runs import FigureRun, FigureSkipped, Tell, opened
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write, replacing

if TYPE_CHECKING:
    from ganherd.viz.pictures import Picture

# By the name of its files: what is drawn of the runs, and what it shows.
FIGURES: dict[str, tuple[Callable[[Sequence[FigureRun], int, Tell], Iterator[tuple[str, str, Picture]]], str]] = {
    "points": (sample_figures.points, "samples over the data, for points in the plane"),
    "samples": (sample_figures.grids, "images of every member"),
    "generalisation": (learning_curves.generalisation, "cost of the discriminators on trained and on held-out data"),
    "spread": (learning_curves.spread, "how far the members' held-out costs lie apart"),
    "map": (class_maps.tsne, "t-SNE of data and samples"),
    "classes": (class_maps.classes, "classes that a classifier sees in the samples"),
}


@dataclass(frozen=True)
class Figure:
    """One figure as it was written."""

    name: str  # of its files, without their ending
    caption: str
    png: Path


def draw(
    runs: Sequence[str | Path],
    folder: str | Path,
    only: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    trust_code: bool = False,
    progress: Tell | None = None,
) -> tuple[Path, list[Figure]]:
    """Draws all figures that fit the runs (or only some) into the folder, with one page of them; the page, the figures.

    `names`: what the runs are called in the figures, instead of their folders' names.
    """
    if unknown := [name for name in only or () if name not in FIGURES]:
        raise UserError(f"there is no figure named {unknown[0]!r}: there are {', '.join(FIGURES)}.")
    tell = progress or (lambda line: None)
    compared = opened(runs, names, trust_code)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} is no folder that figures can be written to: {error.strerror}.") from error
    found, left_out = [], []
    for name in only or FIGURES:
        try:
            found += [_written(folder, *drawn) for drawn in FIGURES[name][0](compared, seed, tell)]
        except FigureSkipped as why:
            left_out.append(f"{name} is left out: {why}")
            tell(left_out[-1])
    if not found:
        raise UserError(f"no figure fits these runs: {'; '.join(left_out)}.")
    return _page(folder, compared, found, left_out), found


def _written(folder: Path, name: str, caption: str, picture: Picture) -> Figure:
    from ganherd.viz.pictures import save

    for ending in (".png", ".svg"):
        with replacing(folder / f"{name}{ending}") as aside:
            save(picture, aside)
    return Figure(name, caption, folder / f"{name}.png")


def _page(folder: Path, runs: Sequence[FigureRun], found: Sequence[Figure], left_out: Sequence[str]) -> Path:
    """figures.html: everything on one page that is complete in itself."""
    from ganherd.report.templating import render

    path = folder / "figures.html"
    title = " · ".join(run.name for run in runs)
    atomic_write(path, render("figures", title=title, figures=found, left_out=left_out))
    return path
