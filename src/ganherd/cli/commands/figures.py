"""`ganherd figures`: draw several runs next to each other, as figures and on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Runs, Seed, Trust, log_unless, names, print_result


def figures(
    runs: Runs,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the figures.")] = Path("figures"),
    only: Annotated[
        str | None,
        typer.Option(
            help="Figures to draw: points, samples, generalisation, spread, map, classes. Default: all that fit."
        ),
    ] = None,
    run_names: Annotated[
        str | None, typer.Option("--names", help="Names of the runs in the figures, separated by commas.")
    ] = None,
    seed: Seed = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw runs next to each other: samples, learning curves, maps, classes."""
    from ganherd.report import figures as drawing

    page, drawn = drawing.draw(runs, output, names(only), names(run_names), seed, trust_code, log_unless(quiet))
    paths = [str(one.png) for one in drawn]
    print_result(as_json, {"page": str(page), "figures": paths}, "\n".join([str(page), *paths]))
