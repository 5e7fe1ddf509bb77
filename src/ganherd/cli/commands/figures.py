"""`ganherd figures` and `ganherd film`: draw several runs next to each other, and film how one herd grows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, RunFolderArgument, Runs, Seed, Trust, log_unless, names, print_result
from ganherd.util.text import size


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


def film(
    run: RunFolderArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .gif or .webp, or .mp4 if ffmpeg is installed.")
    ],
    seconds: Annotated[
        float, typer.Option(min=1, max=600, help="Length of the film, whatever the number of saved steps.")
    ] = 20.0,
    width: Annotated[int, typer.Option(min=240, max=3840, help="Width in pixels.")] = 720,
    replica: Annotated[int, typer.Option(min=0, help="Number of the replica to film.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Film how a herd grows, from the samples of all members that a run saves."""
    from ganherd.film.herd_film import write_film
    from ganherd.util.meter import ProgressBar

    with ProgressBar("frames", quiet or as_json) as meter:
        record = write_film(run, output, seconds, width, replica, meter.at)
    if not record.is_finished:
        log_unless(quiet)(f"note: {run} is not finished: the film ends at step {record.last_step:,}")
    facts = {
        "output": str(record.path),
        "bytes": record.num_bytes,
        "seconds": record.seconds,
        "frames": record.frames,
        "steps": record.steps,
        "last_step": record.last_step,
        "finished": record.is_finished,
    }
    shown = f"{record.path}  {size(record.num_bytes)}, {record.seconds:g} s, {record.steps} saved steps"
    print_result(as_json, facts, shown)
