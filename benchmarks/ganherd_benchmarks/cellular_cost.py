"""Measure an iteration of a grid by routine, next to the reference implementation and the bare matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ganherd.util.files import JsonObject
from ganherd.util.host import torch_threads
from ganherd.util.text import text_table
from ganherd_benchmarks import products

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

Row = JsonObject
Log = Callable[[str], None]
# CPU seconds of the training thread per cell and iteration: Lipizzaner's code in one process, 2 × 2 grid, 600 batches of
# 100, one thread, a Xeon at 2.8 GHz. ganherd reads its data within `update`, and has other copies and replacements.
REFERENCE = {
    "gather": 0.02, "data loading": 6.86, "update": 7.77, "train": 0.38, "mutate": 0.07, "evaluate": 0.46, "mixture": 1.09,
    "replace": None,
}  # fmt: skip
REFERENCE_TOTAL = 16.7
REFERENCE_OF = {"grid": 2, "batches": 600}  # only this is comparable


@dataclass(frozen=True)
class CellularCostRequest:
    """What to measure."""

    grid: int = 2  # rows and columns
    iterations: int = 2
    batches: int = 600
    network: str | None = None  # scores the mixtures; None: that of the papers, with random weights if it is missing
    device: str = "cpu"  # of `sizes`; `measure` takes one CPU thread
    precision: str = "float32"
    threads: int = 1


@dataclass(frozen=True)
class Cost:
    """Seconds of `iterations` iterations of `cells` cells."""

    cells: int
    iterations: int
    routines: dict[str, float]
    total: float
    data: float  # features of the real data, once a run
    engine: str
    memory: int = 0  # peak bytes

    def per_cell(self, seconds: float) -> float:
        return seconds / self.cells / self.iterations


def measure(request: CellularCostRequest, log: Log) -> list[Row]:
    """Return a row for each routine in CPU seconds per cell and iteration, the total, and the features of the data."""
    request = replace(request, device="cpu")
    with _recipe(request, request.grid, log) as recipe:
        log(f"{request.grid} × {request.grid} cells, {request.iterations} iterations of {request.batches} batches…")
        cost = run(recipe, request.iterations, request.batches, time.process_time, log)
        floor = products.floor(recipe, request.batches, time.process_time)
    facts = {
        "grid": [request.grid] * 2,
        "batches": request.batches,
        "engine": cost.engine,
        "unit": "CPU s per cell-iteration",
    }
    comparable = {"grid": request.grid, "batches": request.batches} == REFERENCE_OF
    rows: list[Row] = []
    for name, theirs in REFERENCE.items():
        theirs = theirs if comparable else None
        ours = None if name == "data loading" else cost.per_cell(cost.routines[name])
        rows.append({"routine": name, "ganherd": ours, "reference": theirs, "floor": floor.get(name), **facts})
    total = {
        "ganherd": cost.per_cell(cost.total),
        "reference": REFERENCE_TOTAL if comparable else None,
        "floor": sum(floor.values()),
    }
    rows.append({"routine": "total", **total, **facts})
    rows.append(
        {"routine": "real features, once a run", "ganherd": cost.data, "reference": None, "floor": None, **facts}
    )
    return rows


def sizes(request: CellularCostRequest, grids: Sequence[int], log: Log, output: Path | None) -> list[Row]:
    """Return a row for each n × n grid: wall-clock seconds of an iteration, after one for warming up.

    Args:
        grids: The numbers of rows, which are also the numbers of columns.
        output: The file that receives the rows and the plot so far, after each grid.
    """
    rows: list[Row] = []
    for grid in grids:
        log(f"{grid} × {grid} cells…")
        rows.append({"grid": grid, "cells": grid * grid, **_iteration(request, grid, log)})
        if output is not None:
            save(rows, output)
        if rows[-1]["seconds"] is None:
            break
    return rows


def _iteration(request: CellularCostRequest, grid: int, log: Log) -> Row:
    """Return the seconds of an iteration, by routine too, and its memory; the reason if memory runs out."""
    with _recipe(request, grid, log) as recipe:
        try:
            cost = run(recipe, request.iterations, request.batches, time.perf_counter, log, warm_up=True)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            return {"seconds": None, "why": "out of memory"}
    seconds = cost.total / cost.iterations
    return {
        "seconds": seconds,
        "seconds_per_cell": seconds / cost.cells,
        "batches": request.batches,
        "precision": request.precision,
        "engine": cost.engine,
        "routines": {name: round(each / cost.iterations, 6) for name, each in cost.routines.items()},
        "memory": cost.memory,
    }


def run(
    recipe: Recipe, iterations: int, batches: int, clock: Callable[[], float], log: Log, warm_up: bool = False
) -> Cost:
    """Run whole iterations like a training, without writing records."""
    from ganherd.bench.engine_rates import peaks, reset_peaks, synchronize
    from ganherd.herd.engine import autotune
    from ganherd.herd.engine.device import set_precision
    from ganherd.herd.engine.engines import make_engine, place_state
    from ganherd.runs.profile import Profile
    from ganherd.strategies.cellular.cellular import Cellular
    from ganherd.training.setup.assemble import assemble
    from ganherd.training.setup.build_strategy import make_strategy

    set_precision(recipe)
    assembly = assemble(recipe)
    herd = assembly.herd
    reset_peaks(herd.device)
    plan = autotune.choose(herd, recipe.engine, log)
    with torch_threads(plan.threads):
        place_state(herd, plan)
        strategy = make_strategy(assembly, {"iteration": batches})
        assert isinstance(strategy, Cellular)
        began = clock()
        strategy.mixtures.scorer.look_at_data()
        data = clock() - began
        engine, sums = make_engine(herd, plan), herd.zero_sums()
        for number in range(iterations + warm_up):
            if number == warm_up:  # the first that is measured
                strategy.profile = Profile(clock)
                synchronize(herd.device)
                began = clock()
            list(strategy.open(number * batches))
            left = clock()
            engine.advance(number * batches, (number + 1) * batches, sums)
            strategy.on_steps_done(clock() - left, (number + 1) * batches)
            list(strategy.close((number + 1) * batches))
        synchronize(herd.device)
        total = clock() - began
        held = peaks(herd.device)[1]
        return Cost(
            herd.num_members, iterations, strategy.profile.take(), total, data, plan.describe(herd.num_members), held
        )


@contextmanager
def _recipe(request: CellularCostRequest, grid: int, log: Log) -> Iterator[Recipe]:
    """Yield the recipe of an n × n grid, with the nets of the reference implementation."""
    from ganherd.recipe import recipe_file
    from ganherd_benchmarks import cellular_recipe

    engine = {"device": request.device, **({"threads": request.threads} if request.device == "cpu" else {})}
    with TemporaryDirectory() as folder:
        yield recipe_file.load(
            cellular_recipe.AS_CODED,
            [
                *cellular_recipe.settings(Path(folder), log, request.network),
                cellular_recipe.grid_setting(grid),
                f"train.precision={request.precision}",
                *(f"engine.{key}={value}" for key, value in engine.items()),
            ],
        )


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "alloc" in str(error).lower()


# -- output -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return a table of ganherd, the reference, and the matrix products alone.

    >>> print(table([{"routine": "update", "ganherd": 2.5, "reference": 7.77, "floor": 1.25}]).splitlines()[1])
    update                       2.50       7.77   1.25
    """

    def cell(row: Row, name: str) -> str:
        value = row.get(name)
        if value is None:
            return "in update" if (row["routine"], name) == ("data loading", "ganherd") else "–"
        return f"{value:.2f}"

    columns = ("ganherd", "reference", "floor")
    cells = [[row["routine"], *(cell(row, name) for name in columns)] for row in rows]
    lines = text_table([["CPU s per cell-iteration", *columns], *cells], right=range(1, 4))
    known = any(row.get("reference") is not None for row in rows)
    lines.append(
        "reference: Lipizzaner's code on the same settings, as measured elsewhere (Xeon, 2.8 GHz)"
        if known
        else "reference: left out, as it was measured with a 2 × 2 grid and 600 batches, and this was not"
    )
    lines.append("floor: the matrix products alone of the same steps and fitness, measured in this run")
    return "\n".join(lines)


def sizes_table(rows: Sequence[Row]) -> str:
    """Return a table of the grids.

    >>> row = {"grid": 2, "cells": 4, "seconds": 0.5, "seconds_per_cell": 0.125, "memory": 2**30, "engine": "graph"}
    >>> print(sizes_table([row]))
    grid  cells  s an iteration  ms a cell   GiB  engine
    2×2       4           0.500      125.0  1.00  graph
    """
    lines = [["grid", "cells", "s an iteration", "ms a cell", "GiB", "engine"]]
    for row in rows:
        cells = [f"{row['grid']}×{row['grid']}", str(row["cells"])]
        if row["seconds"] is None:
            lines.append([*cells, row["why"]])
            continue
        times = (f"{row['seconds']:.3f}", f"{1000 * row['seconds_per_cell']:.1f}")
        lines.append([*cells, *times, f"{row['memory'] / 2**30:.2f}", row["engine"]])
    return "\n".join(text_table(lines, right=range(1, 5)))


def save(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as .json, and a plot of the seconds over the number of cells as .png."""
    import json

    from ganherd.viz import pictures
    from ganherd.viz.pictures import DATA, GENERATED, INK, new_figure

    known = [row for row in rows if row["seconds"] is not None]
    figure, (axes,) = new_figure(5.4, 3.4)
    if known:
        cells, seconds = ([row[name] for row in known] for name in ("cells", "seconds"))
        ends = (cells[0], max(cells))
        line = [seconds[0] * end / cells[0] for end in ends]
        axes.plot(ends, line, color=DATA, lw=1.2, ls=(0, (4, 2)), label="in proportion to the first")
        axes.plot(cells, seconds, color=GENERATED, lw=2, marker="o", ms=4, label="measured")
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    axes.set_xlabel("cells", color=INK)
    axes.set_ylabel("seconds per iteration", color=INK)
    axes.set_title("An iteration of grids of any size", color=INK, fontsize=10, loc="left")
    axes.set_ylim(0, 1.15 * max((row["seconds"] for row in known), default=1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"rows": list(rows)}, indent=1) + "\n", encoding="utf-8")
    pictures.save(figure, path.with_suffix(".png"))
