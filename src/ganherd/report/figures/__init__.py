"""Draw figures that compare several runs, like those of the GAP paper, as PNG and SVG files and on one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.report.figures import class_maps, learning_curves, sample_figures
from ganherd.report.figures.figure_runs import FigureRun, FigureSkipped, Log, opened
from ganherd.report.templating import render
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write, replacing
from ganherd.viz import pictures

if TYPE_CHECKING:
    from ganherd.viz.pictures import Picture

# The functions that draw figures, by the names that users give. Each yields (file name, caption, picture).
FIGURES: dict[str, Callable[[Sequence[FigureRun], int, Log], Iterator[tuple[str, str, Picture]]]] = {
    "points": sample_figures.points,
    "samples": sample_figures.grids,
    "generalisation": learning_curves.generalisation,
    "spread": learning_curves.spread,
    "map": class_maps.tsne,
    "classes": class_maps.classes,
}


@dataclass(frozen=True)
class Figure:
    """A figure that was written as PNG and SVG."""

    name: str  # name of its files, without suffix
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
    """Draw all figures that are possible for these runs into a folder, and a page that shows them.

    Args:
        runs: The run folders.
        only: Names of the figures to draw, from FIGURES; default: all.
        names: Names of the runs in the figures; default: those of their folders.
        seed: The seed of samples and maps.

    Returns:
        The path of the page, and the figures.

    Raises:
        UserError: A name is unknown, or no figure is possible.
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
    drawn, left_out = [], []
    for name in only or FIGURES:
        try:
            drawn += [_written(folder, *figure) for figure in FIGURES[name](compared, seed, log)]
        except FigureSkipped as why:
            left_out.append(f"{name} is left out: {why}")
            log(left_out[-1])
    if not drawn:
        raise UserError(f"no figure fits these runs: {'; '.join(left_out)}.")
    page = folder / "figures.html"
    title = " · ".join(run.name for run in compared)
    atomic_write(page, render("figures", title=title, figures=drawn, left_out=left_out))
    return page, drawn


def _written(folder: Path, name: str, caption: str, picture: Picture) -> Figure:
    """Write a picture as PNG and as SVG into a folder, and return it as a `Figure`."""
    for ending in (".png", ".svg"):
        with replacing(folder / f"{name}{ending}") as temporary:
            pictures.save(picture, temporary)
    return Figure(name, caption, folder / f"{name}.png")
