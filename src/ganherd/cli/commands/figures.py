"""`ganherd figures`: draw several runs next to each other, as figures and on one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Trust, say, show


def figures(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the figures.")] = Path("figures"),
    only: Annotated[
        str | None,
        typer.Option(
            help="Figures to draw: points, samples, generalisation, spread, map, classes. Default: all that fit."
        ),
    ] = None,
    names: Annotated[str | None, typer.Option(help="Names of the runs in the figures, separated by commas.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw runs next to each other: samples, learning curves, maps, classes."""
    from ganherd.report import figures as drawing

    given = [[one.strip() for one in text.split(",")] if text else None for text in (only, names)]
    page, drawn = drawing.draw(runs, output, given[0], given[1], seed, trust_code, None if quiet else say)
    paths = [str(one.png) for one in drawn]
    show(json.dumps({"page": str(page), "figures": paths}) if as_json else "\n".join([str(page), *paths]))
