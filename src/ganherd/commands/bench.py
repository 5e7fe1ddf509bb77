"""`ganherd bench`: what the machine at hand can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.commands.options import Json, Quiet, say
from ganherd.errors import UserError

bench_app = typer.Typer(help="Benchmarks on the machine at hand.", no_args_is_help=True, rich_markup_mode=None)


@bench_app.command("fusion")
def bench_fusion(
    net: Annotated[str, typer.Option(help="Which nets: mlp, small, wcgan or dcgan.")] = "mlp",
    sizes: Annotated[str, typer.Option(help="Numbers of members.")] = "1,4,10,16,64",
    seconds: Annotated[float, typer.Option(min=0.05, help="Measured for each row.")] = 2.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32, tf32, bf16.")] = "float32",
    plot: Annotated[Path | None, typer.Option("-o", "--output", help="Draw it as a picture.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Member-steps per second and memory of every engine, for several herd sizes."""
    from ganherd.bench import fusion

    members = [int(n) if n.strip().isdecimal() else 0 for n in sizes.split(",")]
    if not all(members):
        raise UserError(f"--sizes {sizes}: give numbers of members with commas between, as 1,4,16.")
    rows = fusion.measure(net, members, seconds, device, precision, None if quiet else say)
    if plot:
        fusion.draw(rows, plot)
    print(json.dumps({"rows": rows}) if as_json else fusion.table(rows))
