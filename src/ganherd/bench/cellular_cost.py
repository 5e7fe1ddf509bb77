"""What an iteration of a grid costs, routine by routine, beside the reference implementation and the bare matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ganherd.bench.checkout import WHERE, has_rivals, rival_module
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.host import torch_threads
from ganherd.util.text import text_table

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

Row = JsonObject
Say = Callable[[str], None]
# CPU seconds of the training thread per cell and iteration: Lipizzaner's code in one process, 2 × 2 grid, 600 batches of
# 100, one thread, a Xeon at 2.8 GHz. Ours reads its data within `update`, and has copies and replacements of its own.
REFERENCE = {
    "gather": 0.02, "data loading": 6.86, "update": 7.77, "train": 0.38, "mutate": 0.07, "evaluate": 0.46, "mixture": 1.09,
    "replace": None,
}  # fmt: skip
REFERENCE_TOTAL = 16.7
REFERENCE_OF = {"grid": 2, "batches": 600}  # nothing else can be compared with it
IMAGES = 60_000


@dataclass(frozen=True)
class CellularCostRequest:
    grid: int = 2  # rows and columns
    iterations: int = 2
    batches: int = 600
    network: str | None = (
        None  # of the mixtures' score; none: that of the papers, with drawn weights where they are missing
    )
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1


@dataclass(frozen=True)
class Cost:
    """Of `iterations` of `cells` cells, in seconds of a clock."""

    cells: int
    iterations: int
    routines: dict[str, float]
    total: float
    data: float  # the look at the real data, once a run
    engine: str
    memory: int = 0  # bytes held at most at once

    def per_cell(self, seconds: float) -> float:
        return seconds / self.cells / self.iterations


def measure(asked: CellularCostRequest, say: Say) -> list[Row]:
    """A row for each routine, in CPU seconds per cell and iteration, then the total and the look at the data."""
    with _recipe(asked, asked.grid, say) as recipe:
        say(f"{asked.grid} × {asked.grid} cells, {asked.iterations} iterations of {asked.batches} batches…")
        cost = run(recipe, asked.iterations, asked.batches, time.process_time, say)
        floor: dict[str, float] = {}
        if has_rivals():
            products = rival_module("products", "the floor")
            floor = products.floor(recipe, asked.batches, time.process_time)
    facts = {
        "grid": [asked.grid] * 2,
        "batches": asked.batches,
        "engine": cost.engine,
        "unit": "CPU s per cell-iteration",
    }
    comparable = {"grid": asked.grid, "batches": asked.batches} == REFERENCE_OF
    rows: list[Row] = []
    for name, theirs in REFERENCE.items():
        theirs = theirs if comparable else None
        ours = None if name == "data loading" else cost.per_cell(cost.routines[name])
        rows.append({"routine": name, "ganherd": ours, "reference": theirs, "floor": floor.get(name), **facts})
    total = {
        "ganherd": cost.per_cell(cost.total),
        "reference": REFERENCE_TOTAL if comparable else None,
        "floor": sum(floor.values()) if floor else None,
    }
    rows.append({"routine": "total", **total, **facts})
    rows.append(
        {"routine": "real features, once a run", "ganherd": cost.data, "reference": None, "floor": None, **facts}
    )
    return rows


def sizes(asked: CellularCostRequest, grids: Sequence[int], say: Say, keep: Callable[[list[Row]], None]) -> list[Row]:
    """A row for each grid of so many rows and columns: wall-clock seconds of an iteration, after one that warms up; `keep` gets
    what there is after each."""
    rows: list[Row] = []
    for grid in grids:
        if grid < 1:
            raise UserError(f"--grid-sizes {grid}: a grid has at least 1 row and 1 column.")
        say(f"{grid} × {grid} cells…")
        with _recipe(asked, grid, say) as recipe:
            try:
                cost = run(recipe, asked.iterations, asked.batches, time.perf_counter, say, warm_up=True)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                rows.append({"grid": grid, "cells": grid * grid, "seconds": None, "why": "out of memory"})
                keep(rows)
                break
        one = cost.total / cost.iterations
        each = {name: round(s / cost.iterations, 6) for name, s in cost.routines.items()}
        facts = {"batches": asked.batches, "precision": asked.precision, "engine": cost.engine, "routines": each}
        facts["memory"] = cost.memory
        rows.append({"grid": grid, "cells": cost.cells, "seconds": one, "seconds_per_cell": one / cost.cells, **facts})
        keep(rows)
    return rows


def run(
    recipe: Recipe, iterations: int, batches: int, clock: Callable[[], float], say: Say, warm_up: bool = False
) -> Cost:
    """Whole iterations as a run makes them, less what is written down."""
    from ganherd.bench.peak_memory import peaks, reset_peaks, synchronize
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
    plan = autotune.choose(herd, recipe.engine, say)
    with torch_threads(plan.threads):
        place_state(herd, plan)
        strategy = make_strategy(assembly, {"iteration": batches})
        assert isinstance(strategy, Cellular)
        began = clock()
        strategy.mixtures.mixer.look_at_data()
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
def _recipe(asked: CellularCostRequest, grid: int, say: Say) -> Iterator[Recipe]:
    """`mnist-cellular-2x2` with another grid, on MNIST if it is here, else on made images of that shape and number."""
    import numpy as np

    from ganherd.data.readers.named import find
    from ganherd.features.lipizzaner import FILE
    from ganherd.recipe import recipe_file
    from ganherd.util.paths import data_home

    with TemporaryDirectory() as folder:
        source, network = "mnist", asked.network
        random = np.random.default_rng(0)
        if find("mnist") is None:
            say("MNIST is not here: made images of its shape and number stand in, which cost the same")
            source = str(Path(folder) / "made.npz")
            np.savez(source, x=random.integers(0, 256, (IMAGES, 1, 28, 28), np.uint8), y=np.arange(IMAGES) % 10)
        if network is None and (data_home() / FILE).is_file():
            network = "lipizzaner-mnist"
        elif network is None:
            say("the papers' small classifier is not here: its net with drawn weights stands in, which costs the same")
            network = str(Path(folder) / FILE)
            _write_net(Path(network))
        engine = {"device": asked.device, **({"threads": asked.threads} if asked.device == "cpu" else {})}
        yield recipe_file.load(
            "mnist-cellular-2x2",
            [
                f"data.source={source}",
                f"strategy.cellular.grid=[{grid}, {grid}]",
                f"strategy.cellular.mixing.network={network}",
                "strategy.cellular.mutation.learning_rate=reference",  # all that the reference does
                "strategy.cellular.mixing.keep=last",
                f"train.precision={asked.precision}",
                *(f"engine.{key}={value}" for key, value in engine.items()),
                # an own share of the images, where made ones are split
                *(["data.holdout=0"] if source != "mnist" else []),
            ],
        )


def _write_net(path: Path) -> None:
    """Weights for the papers' network, drawn with a seed."""
    import numpy as np
    import torch

    from ganherd.features.lipizzaner import LipizzanerNet

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = LipizzanerNet()
    arrays: JsonObject = {name: value.detach().numpy() for name, value in net.named_parameters()}
    np.savez(path, **arrays)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "alloc" in str(error).lower()


# -- for people -------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Ours beside the reference's, and the products alone.

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
    lines.append(
        "floor: the matrix products alone of the same steps and fitness, measured in this run"
        if any(row.get("floor") is not None for row in rows)
        else f"floor: not measured; {WHERE}"
    )
    return "\n".join(lines)


def sizes_table(rows: Sequence[Row]) -> str:
    """
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
    """The rows as .json, and the cost of an iteration over the number of cells as .png beside it."""
    import json

    from ganherd.viz import pictures
    from ganherd.viz.pictures import DATA, GENERATED, INK, new_figure

    known = [row for row in rows if row["seconds"] is not None]
    figure, (axes,) = new_figure(5.4, 3.4)
    if known:
        cells, seconds = ([row[name] for row in known] for name in ("cells", "seconds"))
        each = sum(seconds) / sum(cells)
        axes.plot([0, max(cells)], [0, each * max(cells)], color=DATA, lw=1.2, ls=(0, (4, 2)), label="in proportion")
        axes.plot(cells, seconds, color=GENERATED, lw=2, marker="o", ms=4, label="measured")
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    axes.set_xlabel("cells", color=INK)
    axes.set_ylabel("seconds of an iteration", color=INK)
    axes.set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"rows": list(rows)}, indent=1) + "\n", encoding="utf-8")
    pictures.save(figure, path.with_suffix(".png"))
