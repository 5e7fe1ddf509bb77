"""Draw several runs next to each other, like the figures of the GAP paper: as PNG and SVG, and on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.report.figures import class_maps, learning_curves, sample_figures
from ganherd.report.figures.figure_runs import FigureRun, FigureSkipped, Log, opened
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write, replacing

if TYPE_CHECKING:
    from ganherd.viz.pictures import Picture

# By the name of its files: the function that draws it, and what it shows.
FIGURES: dict[str, tuple[Callable[[Sequence[FigureRun], int, Log], Iterator[tuple[str, str, Picture]]], str]] = {
    "points": (sample_figures.points, "samples over the data, for points in the plane"),
    "samples": (sample_figures.grids, "images of every member"),
    "generalisation": (learning_curves.generalisation, "cost of the discriminators on trained and on held-out data"),
    "spread": (learning_curves.spread, "how far the members' held-out costs lie apart"),
    "map": (class_maps.tsne, "t-SNE of data and samples"),
    "classes": (class_maps.classes, "classes that a classifier sees in the samples"),
}


@dataclass(frozen=True)
class Figure:
    """One figure that was written."""

    name: str  # of its files, without suffix
    caption: str
    png: Path


def draw(
    runs: Sequence[str | Path],
    folder: str | Path,
    only: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    trust_code: bool = False,
    progress: Log | None = None,
) -> tuple[Path, list[Figure]]:
    """Draw all figures that fit the runs into a folder, and a page of them; return the page and the figures.

    Args:
        only: Names of figures to draw; default: all.
        names: Names of the runs in the figures; default: those of their folders.
    """
    if unknown := [name for name in only or () if name not in FIGURES]:
        raise UserError(f"there is no figure named {unknown[0]!r}: there are {', '.join(FIGURES)}.")
    log = progress or (lambda line: None)
    compared = opened(runs, names, trust_code)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be used as the folder of figures: {error.strerror}.") from error
    found, left_out = [], []
    for name in only or FIGURES:
        try:
            found += [_written(folder, *drawn) for drawn in FIGURES[name][0](compared, seed, log)]
        except FigureSkipped as why:
            left_out.append(f"{name} is left out: {why}")
            log(left_out[-1])
    if not found:
        raise UserError(f"no figure fits these runs: {'; '.join(left_out)}.")
    return _page(folder, compared, found, left_out), found


def _written(folder: Path, name: str, caption: str, picture: Picture) -> Figure:
    from ganherd.viz.pictures import save

    for ending in (".png", ".svg"):
        with replacing(folder / f"{name}{ending}") as temporary:
            save(picture, temporary)
    return Figure(name, caption, folder / f"{name}.png")


def _page(folder: Path, runs: Sequence[FigureRun], found: Sequence[Figure], left_out: Sequence[str]) -> Path:
    """Write figures.html, a self-contained page with all figures."""
    from ganherd.report.templating import render

    path = folder / "figures.html"
    title = " · ".join(run.name for run in runs)
    atomic_write(path, render("figures", title=title, figures=found, left_out=left_out))
    return path
