"""`ganherd figures`: several runs beside each other, as figures and on one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Trust, say, show


def figures(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder that they go to.")] = Path("figures"),
    only: Annotated[
        str | None,
        typer.Option(help="Some of points, samples, generalisation, spread, map, classes; default: all that fit."),
    ] = None,
    names: Annotated[str | None, typer.Option(help="What to call the runs, with commas between.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw runs beside each other: samples, learning curves, maps, classes."""
    from ganherd.report import figures as drawing

    given = [[one.strip() for one in text.split(",")] if text else None for text in (only, names)]
    page, found = drawing.draw(runs, output, given[0], given[1], seed, trust_code, None if quiet else say)
    paths = [str(one.png) for one in found]
    show(json.dumps({"page": str(page), "figures": paths}) if as_json else "\n".join([str(page), *paths]))
