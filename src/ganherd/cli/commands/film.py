"""`ganherd film`: write a film of how the samples of a run's members grow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, RunFolderArgument, log_unless, print_result
from ganherd.util.text import size


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
