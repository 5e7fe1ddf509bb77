"""`ganherd bench`: measure what fusing, exchanges and ranks cost on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, say
from ganherd.util.errors import UserError

bench_app = typer.Typer(help="Benchmarks on this machine.", no_args_is_help=True, rich_markup_mode=None)


Cases = Annotated[
    str | None,
    typer.Option(
        "--cases",
        "--net",
        help="Pairs of nets: wcgan, dcgan64, mlp, residual, small, separated by commas. Default: mlp; on a GPU the first four.",
    ),
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Precision = Annotated[
    str | None, typer.Option(help="Precision: float32, tf32 or bf16. Default: bf16 on a GPU, float32 otherwise.")
]
Seconds = Annotated[float, typer.Option(min=0.05, help="Seconds to measure each row.")]


@bench_app.command("fusion")
def bench_fusion(
    net: Cases = None,
    ways: Annotated[
        str | None,
        typer.Option(
            help="Ways to train: eager, processes, streams, grouped, compiled, loop, fused, graph, ours. Default: by device."
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--members", "--sizes", help="Numbers of members, e.g. 1,10,100. Default: by case.")
    ] = None,
    seconds: Seconds = 2.0,
    device: Device = "auto",
    precision: Precision = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--save", "--output", help="File of the rows (.json) and of a picture (.png)."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the member-steps per second and the memory of every way to train many small GANs on the same data."""
    from ganherd.bench import throughput

    members = _numbers(sizes)
    request = throughput.ThroughputRequest(_names(net), _names(ways), members, seconds, device, precision)
    request.check()
    from ganherd.bench.throughput_text import table

    result = throughput.measure(
        request,
        (lambda text: None) if quiet else say,
        None if output is None else partial(throughput.save, path=output),
    )
    written = {} if output is None else throughput.save(result, output)
    print(json.dumps(result.plain()) if as_json else table(result) + _named(written))


@bench_app.command("exchange")
def bench_exchange(
    net: Cases = None,
    sizes: Annotated[
        str | None, typer.Option("--members", "--sizes", help="Numbers of members, e.g. 4,16. Default: by device.")
    ] = None,
    seconds: Seconds = 1.0,
    device: Device = "auto",
    precision: Precision = None,
    images: Annotated[int, typer.Option(min=1, help="Number of images in an epoch of each member.")] = 50_000,
    output: Annotated[Path | None, typer.Option("-o", "--save", "--output", help="File of the rows (.json).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the time and the bytes of a GAP swap, and its share of an epoch at 0.5 and at 2 swaps an epoch."""
    from ganherd.bench import exchange

    request = exchange.ExchangeRequest(_names(net), _numbers(sizes), seconds, device, precision, images)
    rows = exchange.measure(request, (lambda text: None) if quiet else say)
    if output is not None:
        exchange.save(rows, output)
    print(json.dumps({"rows": rows}) if as_json else exchange.table(rows) + _named({"rows": output} if output else {}))


@bench_app.command("cellular")
def bench_cellular(
    grid_sizes: Annotated[
        str | None,
        typer.Option(help="Measure an iteration of n × n grids instead, e.g. 1,2,4,8 or 1-12."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Number of iterations to measure.")] = 2,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 100 images in an iteration.")] = 600,
    network: Annotated[
        str | None,
        typer.Option(help="Network that scores the mixtures. Default: the small classifier of the cellular papers."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Device for --grid-sizes: auto, cpu or cuda. Otherwise one CPU thread is measured.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="Precision: float32, tf32 or bf16.")] = "float32",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--save", help="With --grid-sizes: file of the rows (.json) and of a plot (.png)."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the CPU seconds of a cellular iteration by routine, and compare them with the reference implementation."""
    from ganherd.bench import cellular_cost

    log = (lambda text: None) if quiet else say
    if grid_sizes is None:
        if output is not None:
            raise UserError("-o writes the plot of --grid-sizes: give --grid-sizes as well, or redirect the output.")
        rows = cellular_cost.measure(
            cellular_cost.CellularCostRequest(
                iterations=iterations, batches=batches, network=network, precision=precision
            ),
            log,
        )
        print(json.dumps({"rows": rows}) if as_json else cellular_cost.table(rows))
        return
    request = cellular_cost.CellularCostRequest(
        iterations=iterations, batches=batches, network=network, device=device, precision=precision
    )
    keep = (lambda so_far: None) if output is None else partial(cellular_cost.save, path=output)
    rows = cellular_cost.sizes(request, _sizes(grid_sizes), log, keep)
    print(json.dumps({"rows": rows}) if as_json else cellular_cost.sizes_table(rows) + _named(_both(output)))


@bench_app.command("scaling")
def bench_scaling(
    ranks: Annotated[
        str, typer.Option(help="Numbers of ranks, e.g. 1,2,4; inside a job, those up to its own number.")
    ] = "1,2,4",
    members: Annotated[int, typer.Option(min=1, help="Members of each rank in weak scaling.")] = 2,
    net: Annotated[
        str, typer.Option("--case", "--net", help="Pair of nets: wcgan, dcgan64, mlp, residual or small.")
    ] = "mlp",
    steps: Annotated[int, typer.Option(min=1, help="Steps from one exchange to the next.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of steps and an exchange to measure.")] = 5,
    with_model: Annotated[
        bool,
        typer.Option("--model", help="Fit a model to the messages, and predict the efficiency of 10 to 2,000 ranks."),
    ] = False,
    every: Annotated[
        int | None, typer.Option(min=1, help="Steps from one exchange to the next in the model. Default: --steps.")
    ] = None,
    alone: Annotated[
        int,
        typer.Option(min=0, help="Compare this many ranks of a per-class herd with as many unrelated runs instead."),
    ] = 0,
    device: Annotated[str, typer.Option(help="Device: cpu or cuda.")] = "cpu",
    output: Annotated[
        Path | None, typer.Option("-o", "--save", help="File of the rows (.json) and of plots (.png).")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure weak and strong scaling over ranks, on this machine or in the current job, and model larger jobs."""
    from ganherd.bench.scaling import scaling

    if alone:
        from ganherd.bench.checkout import rival_module

        unrelated_runs = rival_module("unrelated_runs", "--alone")
        result = unrelated_runs.measure(alone, steps, (lambda text: None) if quiet else say)
        print(json.dumps(result) if as_json else unrelated_runs.table(result))
        return
    request = scaling.ScalingRequest(net, members, scaling.ranks_of(ranks), steps, rounds, device)
    result = scaling.measure(request, (lambda text: None) if quiet else say)
    if result is None:  # another rank of the job prints the result
        return
    if with_model:
        result["model"] = scaling.model(result, every)
    if output is not None:
        scaling.save(result, output)
    print(json.dumps(result) if as_json else scaling.table(result) + _named(_both(output)))


def _both(output: Path | None) -> dict[str, Path]:
    """Return the files that -o NAME writes, by their kind."""
    return {} if output is None else {"rows": output.with_suffix(".json"), "picture": output.with_suffix(".png")}


def _named(written: Mapping[str, Path]) -> str:
    """Return the lines that name the written files below a table.

    >>> print(_named({"rows": Path("a.json")}).strip())
    rows     a.json
    """
    return "".join(["\n", *(f"\n{what:<8} {path}" for what, path in written.items())]) if written else ""


def _sizes(text: str) -> tuple[int, ...]:
    """Parse a list of grid sizes.

    >>> _sizes("1-4"), _sizes("2,8")
    ((1, 2, 3, 4), (2, 8))
    """
    first, dash, last = text.partition("-")
    if dash and first.strip().isdecimal() and last.strip().isdecimal():
        result = tuple(range(int(first), int(last) + 1))
    else:
        result = tuple(int(n) if n.strip().isdecimal() else 0 for n in text.split(","))
    if not result or not all(result):
        raise UserError(f"--grid-sizes {text}: give numbers of rows, e.g. 1,2,4,8, or a range, e.g. 1-12.")
    return result


def _numbers(text: str | None) -> tuple[int, ...] | None:
    result = None if text is None else tuple(int(n) if n.strip().isdecimal() else 0 for n in text.split(","))
    if result is not None and not all(result):
        raise UserError(f"--members or --sizes {text}: give numbers of members separated by commas, e.g. 1,4,16.")
    return result


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))
