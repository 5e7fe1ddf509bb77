"""`ganherd bench`: measure what fusing, exchanges and ranks cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, examples, log_unless, named_files, names, numbers, print_result
from ganherd.util.errors import UserError

bench_app = typer.Typer(help="Benchmarks on this machine.", no_args_is_help=True)


Cases = Annotated[
    str | None,
    typer.Option(
        "--cases",
        "--net",
        help="Pairs of nets: wcgan, dcgan64, mlp, residual, small, separated by commas. Default: mlp; on a GPU the first four.",
    ),
]
Members = Annotated[
    str | None,
    typer.Option("--members", "--sizes", help="Numbers of members, e.g. 2,10,100. Default: by case and device."),
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Precision = Annotated[
    str | None, typer.Option(help="Precision: float32, tf32 or bf16. Default: bf16 on a GPU, float32 otherwise.")
]
Seconds = Annotated[float, typer.Option(min=0.05, help="Seconds to measure each row.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--save", "--output", help="File of the rows (.json) and of a picture (.png).")
]


def _numbers_of_members(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else numbers("--members or --sizes", text, "1,4,16")


@bench_app.command("fusion", epilog=examples("ganherd bench fusion --sizes 1,4,16 -o fusion.png"))
def bench_fusion(
    net: Cases = None,
    ways: Annotated[
        str | None,
        typer.Option(
            help="Ways to train: eager, processes, streams, grouped, compiled, loop, fused, graph, ours. Default: by device."
        ),
    ] = None,
    sizes: Members = None,
    seconds: Seconds = 2.0,
    device: Device = "auto",
    precision: Precision = None,
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the member-steps per second and the memory of every way to train many small GANs on the same data."""
    from ganherd.bench import throughput

    members = _numbers_of_members(sizes)
    request = throughput.ThroughputRequest(names(net), members, seconds, device, precision, names(ways))
    request.check()
    from ganherd.bench.throughput_text import table

    result = throughput.measure(request, log_unless(quiet), output)
    files = {} if output is None else throughput.save(result, output)
    print_result(as_json, result.plain(), table(result) + named_files(files))


@bench_app.command("exchange", epilog=examples("ganherd bench exchange"))
def bench_exchange(
    net: Cases = None,
    sizes: Members = None,
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

    members = _numbers_of_members(sizes)
    request = exchange.ExchangeRequest(names(net), members, seconds, device, precision, images)
    rows = exchange.measure(request, log_unless(quiet))
    if output is not None:
        exchange.save(rows, output)
    print_result(as_json, {"rows": rows}, exchange.table(rows) + named_files({"rows": output} if output else {}))


@bench_app.command("start", epilog=examples("ganherd bench start --cases default"))
def bench_start(
    cases: Annotated[
        str | None,
        typer.Option(help="Cases: wcgan, gap, cellular, residual, own, default. Default: the first five on a GPU."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Setting of all recipes, e.g. train.batch=32.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--save", "--output", help="File of the rows (.json).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the seconds from `ganherd train` to its first recorded step, with empty and with filled caches."""
    from ganherd.bench import start

    chosen = names(cases) or start.default_cases()
    start.check(chosen)
    rows = start.measure(chosen, changes or [], log_unless(quiet))
    if output is not None:
        start.save(rows, changes or [], output)
    print_result(as_json, {"rows": rows}, start.table(rows) + named_files({"rows": output} if output else {}))


@bench_app.command(
    "cellular", epilog=examples("ganherd bench cellular --grid-sizes 1-4", "ganherd bench cellular --ranks 1,5,10,17")
)
def bench_cellular(
    grid_sizes: Annotated[
        str | None,
        typer.Option(help="Measure an iteration of n × n grids instead, e.g. 1,2,4,8 or 1-12."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Measure grids on one core and on ranks instead, e.g. 1,5,10,17: one core, then one rank more than 2 × 2, "
            "3 × 3 and 4 × 4 have cells."
        ),
    ] = None,
    grids: Annotated[
        str | None,
        typer.Option(help="With --ranks: numbers of rows of the grids, e.g. 2,3,4. Default: by the numbers of ranks."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Number of iterations to measure.")] = 2,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 100 images in an iteration.")] = 600,
    repeats: Annotated[int, typer.Option(min=1, help="With --ranks: number of times to measure the iterations.")] = 3,
    launcher: Annotated[str, typer.Option(help="With --ranks: what starts them, mpiexec or torchrun.")] = "mpiexec",
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="With --ranks: measure and mark more ranks than cores, too.")
    ] = False,
    network: Annotated[
        str | None,
        typer.Option(help="Network that scores the mixtures. Default: the small classifier of the cellular papers."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Device for --grid-sizes: auto, cpu or cuda. Otherwise CPU threads are measured.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="Precision: float32, tf32 or bf16. --ranks has float32.")] = "float32",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--save", help="With --grid-sizes or --ranks: file of rows (.json) and of a plot (.png)."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the CPU seconds of a cellular iteration by routine, and compare them with the reference implementation.

    With --ranks, make Tables III and IV and Figure 4 of the cellular paper: grids on one core and on ranks. Needs a
    checkout of ganherd's repository.
    """
    from ganherd.bench.checkout import benchmark_module

    if grid_sizes is not None and ranks is not None:
        raise UserError("--grid-sizes and --ranks are two benchmarks: give one of them.")
    if grid_sizes is None and ranks is None and output is not None:
        raise UserError("-o writes the plot of --grid-sizes or --ranks: give one of them, or redirect the output.")
    if ranks is not None:
        counts = numbers("--ranks", ranks, "1,5,10,17")
        sides = None if grids is None else numbers("--grids", grids, "2,3,4")
        parallel = benchmark_module("cellular_parallel", "`ganherd bench cellular`")
        wanted = parallel.ParallelRequest(counts, sides, iterations, batches, repeats, launcher, network, oversubscribe)
        result = parallel.measure(wanted, log_unless(quiet), output)
        tables = benchmark_module("cellular_tables", "`ganherd bench cellular`")
        print_result(as_json, result, tables.text(result) + _rows_and_picture(output))
        return
    sizes = None if grid_sizes is None else numbers("--grid-sizes", grid_sizes, "1,2,4,8 or 1-12")
    cellular_cost = benchmark_module("cellular_cost", "`ganherd bench cellular`")
    request = cellular_cost.CellularCostRequest(2, iterations, batches, network, device, precision)
    if sizes is None:
        rows = cellular_cost.measure(request, log_unless(quiet))
        text = cellular_cost.table(rows)
    else:
        rows = cellular_cost.sizes(request, sizes, log_unless(quiet), output)
        text = cellular_cost.sizes_table(rows) + _rows_and_picture(output)
    print_result(as_json, {"rows": rows}, text)


@bench_app.command("scaling", epilog=examples("ganherd bench scaling --ranks 1,2"))
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
        typer.Option(
            "--model", help="Fit a model to messages and waits, and predict the efficiency of 10 to 2,000 ranks."
        ),
    ] = False,
    every: Annotated[
        int | None, typer.Option(min=1, help="Steps from one exchange to the next in the model. Default: --steps.")
    ] = None,
    run_steps: Annotated[
        int, typer.Option(min=1, help="Steps of a whole run in the model, over which the start is spread.")
    ] = 20_000,
    alone: Annotated[
        int,
        typer.Option(min=0, help="Compare this many ranks of a per-class herd with as many unrelated runs instead."),
    ] = 0,
    device: Annotated[str, typer.Option(help="Device: cpu or cuda.")] = "cpu",
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure weak and strong scaling over ranks, on this machine or in the current job, and model larger jobs.

    Needs a checkout of ganherd's repository.
    """
    from ganherd.bench.checkout import benchmark_module

    if alone:
        unrelated_runs = benchmark_module("unrelated_runs", "--alone")
        result = unrelated_runs.measure(alone, steps, log_unless(quiet))
        print_result(as_json, result, unrelated_runs.table(result))
        return
    counts = sorted(set(numbers("--ranks", ranks, "1,2,4")))
    scaling = benchmark_module("scaling", "`ganherd bench scaling`")
    request = scaling.ScalingRequest(net, members, tuple(counts), steps, rounds, device)
    result = scaling.measure(request, log_unless(quiet))
    if result is None:  # another rank of the job prints the result
        return
    if with_model:
        result["model"] = scaling.model(result, every, run_steps)
    if output is not None:
        scaling.save(result, output)
    print_result(as_json, result, scaling.table(result) + _rows_and_picture(output))


def _rows_and_picture(output: Path | None) -> str:
    """Return the lines that name the two files that -o writes, rows and picture; "" without -o."""
    return named_files({"rows": output.with_suffix(".json"), "picture": output.with_suffix(".png")} if output else {})
