"""`ganherd bench`: what the machine at hand can do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, say
from ganherd.util.errors import UserError

bench_app = typer.Typer(help="Benchmarks on the machine at hand.", no_args_is_help=True, rich_markup_mode=None)


@bench_app.command("fusion")
def bench_fusion(
    net: Annotated[
        str | None,
        typer.Option(
            "--cases", "--net", help="wcgan, dcgan64, mlp, residual, small; default: mlp, on a GPU the first four."
        ),
    ] = None,
    ways: Annotated[
        str | None,
        typer.Option(
            help="eager, processes, streams, grouped, compiled, loop, fused, graph, ours; default: by device."
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--members", "--sizes", help="Numbers of members, as 1,10,100; default: by case.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Measured for each row.")] = 2.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="float32, tf32, bf16; default: bf16 on a GPU, else float32.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--save", "--output", help="Keep the rows as .json and a picture as .png beside it."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Member-steps per second and memory of every way to train many small GANs, measured in one run on the same data."""
    from ganherd.bench import throughput

    members = _numbers(sizes)
    asked = throughput.ThroughputRequest(_names(net), _names(ways), members, seconds, device, precision)
    asked.check()
    from ganherd.bench.throughput_text import table

    found = throughput.measure(
        asked,
        (lambda text: None) if quiet else say,
        None if output is None else partial(throughput.save, path=output),
    )
    written = {} if output is None else throughput.save(found, output)
    print(json.dumps(found.plain()) if as_json else table(found) + _named(written))


@bench_app.command("exchange")
def bench_exchange(
    net: Annotated[
        str | None,
        typer.Option(
            "--cases", "--net", help="wcgan, dcgan64, mlp, residual, small; default: mlp, on a GPU the first four."
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--members", "--sizes", help="Numbers of members, as 4,16; default: by device.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Measured for each row.")] = 1.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="float32, tf32, bf16; default: bf16 on a GPU, else float32.")
    ] = None,
    images: Annotated[
        int, typer.Option(min=1, help="Of an epoch, all of which every member of a GAP herd sees.")
    ] = 50_000,
    output: Annotated[Path | None, typer.Option("-o", "--save", "--output", help="Keep the rows as .json.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time and bytes of a swap of GAP, and its share of an epoch at 0.5 and at 2 swaps an epoch."""
    from ganherd.bench import exchange

    asked = exchange.ExchangeRequest(_names(net), _numbers(sizes), seconds, device, precision, images)
    rows = exchange.measure(asked, (lambda text: None) if quiet else say)
    if output is not None:
        exchange.save(rows, output)
    print(json.dumps({"rows": rows}) if as_json else exchange.table(rows) + _named({"rows": output} if output else {}))


@bench_app.command("cellular")
def bench_cellular(
    grid_sizes: Annotated[
        str | None,
        typer.Option(help="Instead: the cost of an iteration of these n × n grids, as 1,2,4,8 or 1-12."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Measured.")] = 2,
    batches: Annotated[int, typer.Option(min=1, help="Of 100 images, in an iteration.")] = 600,
    network: Annotated[
        str | None, typer.Option(help="Of the mixtures' score; default: the cellular papers' small classifier.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="For --grid-sizes: auto, cpu, cuda. The table is of one CPU thread.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="float32, tf32, bf16.")] = "float32",
    output: Annotated[
        Path | None, typer.Option("-o", "--save", help="With --grid-sizes: the rows as .json and a plot as .png.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """CPU seconds of a cellular iteration, routine by routine, beside the reference implementation's."""
    from ganherd.bench import cellular_cost

    tell = (lambda text: None) if quiet else say
    if grid_sizes is None:
        if output is not None:
            raise UserError("-o keeps the plot of --grid-sizes: give it too, or redirect the output.")
        rows = cellular_cost.measure(
            cellular_cost.CellularCostRequest(
                iterations=iterations, batches=batches, network=network, precision=precision
            ),
            tell,
        )
        print(json.dumps({"rows": rows}) if as_json else cellular_cost.table(rows))
        return
    asked = cellular_cost.CellularCostRequest(
        iterations=iterations, batches=batches, network=network, device=device, precision=precision
    )
    keep = (lambda so_far: None) if output is None else partial(cellular_cost.save, path=output)
    rows = cellular_cost.sizes(asked, _sizes(grid_sizes), tell, keep)
    print(json.dumps({"rows": rows}) if as_json else cellular_cost.sizes_table(rows) + _named(_both(output)))


@bench_app.command("scaling")
def bench_scaling(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks; within a job of ranks those up to its own.")] = "1,2,4",
    members: Annotated[int, typer.Option(min=1, help="Of each rank, in weak scaling.")] = 2,
    net: Annotated[str, typer.Option("--case", "--net", help="wcgan, dcgan64, mlp, residual, small.")] = "mlp",
    steps: Annotated[int, typer.Option(min=1, help="From one exchange to the next.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Of steps and an exchange that are measured.")] = 5,
    with_model: Annotated[
        bool, typer.Option("--model", help="Fit a model to the messages, and say what 10 to 2,000 ranks would do.")
    ] = False,
    every: Annotated[
        int | None, typer.Option(min=1, help="Steps from one exchange to the next in the model; default: --steps.")
    ] = None,
    alone: Annotated[
        int, typer.Option(min=0, help="Instead: so many ranks of a per-class herd beside as many unrelated runs.")
    ] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda.")] = "cpu",
    output: Annotated[Path | None, typer.Option("-o", "--save", help="The rows as .json and plots as .png.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Weak and strong scaling over ranks, here or in the job that it is started in, and a model of larger ones."""
    from ganherd.bench.scaling import scaling

    if alone:
        from ganherd.bench.checkout import rival_module

        unrelated_runs = rival_module("unrelated_runs", "--alone")
        beside = unrelated_runs.measure(alone, steps, (lambda text: None) if quiet else say)
        print(json.dumps(beside) if as_json else unrelated_runs.table(beside))
        return
    asked = scaling.ScalingRequest(net, members, scaling.ranks_of(ranks), steps, rounds, device)
    found = scaling.measure(asked, (lambda text: None) if quiet else say)
    if found is None:  # another rank of the job has the answer
        return
    if with_model:
        found["model"] = scaling.model(found, every)
    if output is not None:
        scaling.save(found, output)
    print(json.dumps(found) if as_json else scaling.table(found) + _named(_both(output)))


def _both(output: Path | None) -> dict[str, Path]:
    """What -o NAME stands for, by its kind."""
    return {} if output is None else {"rows": output.with_suffix(".json"), "picture": output.with_suffix(".png")}


def _named(written: Mapping[str, Path]) -> str:
    """The files below a table; nothing where none was asked for.

    >>> print(_named({"rows": Path("a.json")}).strip())
    rows     a.json
    """
    return "".join(["\n", *(f"\n{what:<8} {path}" for what, path in written.items())]) if written else ""


def _sizes(text: str) -> tuple[int, ...]:
    """
    >>> _sizes("1-4"), _sizes("2,8")
    ((1, 2, 3, 4), (2, 8))
    """
    first, dash, last = text.partition("-")
    if dash and first.strip().isdecimal() and last.strip().isdecimal():
        found = tuple(range(int(first), int(last) + 1))
    else:
        found = tuple(int(n) if n.strip().isdecimal() else 0 for n in text.split(","))
    if not found or not all(found):
        raise UserError(
            f"--grid-sizes {text}: give rows and columns with commas between, as 1,2,4,8, or a range, as 1-12."
        )
    return found


def _numbers(text: str | None) -> tuple[int, ...] | None:
    found = None if text is None else tuple(int(n) if n.strip().isdecimal() else 0 for n in text.split(","))
    if found is not None and not all(found):
        raise UserError(f"--members or --sizes {text}: give numbers of members with commas between, as 1,4,16.")
    return found


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))
