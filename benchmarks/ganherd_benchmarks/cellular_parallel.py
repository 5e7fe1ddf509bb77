"""Measure grids on one core and on ranks of this machine: Tables III and IV and Figure 4 of the cellular paper."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ganherd.comm.backends.detect import detect
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.host import cores
from ganherd_benchmarks import cellular_picture, cellular_recipe, cellular_tables, launchers
from provenance import commit

Log = Callable[[str], None]
_ENGINE = ("engine.device=cpu", "engine.threads=1", "engine.name=fused")


@dataclass(frozen=True)
class ParallelRequest:
    """What to measure."""

    ranks: tuple[int, ...] = (1, 5, 10, 17)  # as the paper counts them, or as ganherd does: see `plan`
    grids: tuple[int, ...] | None = None  # rows of n × n grids; None: by the numbers of ranks
    iterations: int = 2  # of a repeat
    batches: int = 600  # of an iteration
    repeats: int = 3
    launcher: str = "mpiexec"
    network: str | None = None  # scores the mixtures; None: that of the papers
    oversubscribe: bool = False  # also measure more ranks than cores

    def check(self) -> None:
        """Raise a UserError for an impossible request, before anything is started."""
        if self.launcher not in launchers.LAUNCHERS:
            raise UserError(f"--launcher {self.launcher}: choose {' or '.join(launchers.LAUNCHERS)}.")
        if detect(os.environ) != "local":
            raise UserError("`ganherd bench cellular --ranks` starts its ranks itself: run it without a launcher.")
        most = max(ranks for _, ranks in plan(self.ranks, self.grids))
        if most > cores() and not self.oversubscribe:
            raise UserError(
                f"{most} ranks are more than the {cores()} cores of this machine, so their times would say little: give fewer "
                "--ranks, or --oversubscribe to measure and mark them."
            )


def plan(ranks: Sequence[int], grids: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return (rows of the grid, ranks) of everything to measure; each grid is measured on one core first.

    The paper starts a master and a process for each cell. ganherd has no master, so m² + 1 processes are m² ranks here.

    >>> plan((1, 5, 10, 17), None)
    [(2, 1), (2, 4), (3, 1), (3, 9), (4, 1), (4, 16)]
    >>> plan((1, 2, 5), (2,))
    [(2, 1), (2, 2), (2, 4)]
    """
    several = sorted({number for number in ranks if number > 1})
    if grids is None:
        sides = {number: side for number in several if (side := _side(number))}
        if unknown := [number for number in several if number not in sides]:
            raise UserError(
                f"--ranks {unknown[0]} is no square grid's number of cells, nor one more: give 5,10,17 or 4,9,16, or --grids too."
            )
        chosen = [(side, side**2) for side in sides.values()] or [(2, 1)]
    else:
        several = several or [1]
        chosen = [(side, min(number, side**2)) for side in grids for number in several if number <= side**2 + 1]
        if not chosen:
            raise UserError(
                f"--ranks {several[0]} is more than the cells of all --grids: give fewer ranks or a larger grid."
            )
    return sorted({each for side, number in chosen for each in ((side, 1), (side, number))})


def _side(number: int) -> int:
    """Return the rows of the square grid with this many cells, or with one cell less; 0 if there is none."""
    return next(
        (math.isqrt(cells) for cells in (number - 1, number) if cells > 1 and math.isqrt(cells) ** 2 == cells), 0
    )


def measure(request: ParallelRequest, log: Log, output: Path | None = None) -> JsonObject:
    """Return rows and tables; all that is known is written to `output` after each row."""
    request.check()
    result: JsonObject = {
        "command": shlex.join(["ganherd", *sys.argv[1:]]),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "cores": cores(),
        "launcher": request.launcher,
        "asked": asdict(request),
        "rows": [],
    }
    with TemporaryDirectory() as folder:
        settings = cellular_recipe.settings(Path(folder), log, request.network)
        for grid, ranks in plan(request.ranks, request.grids):
            log(f"{grid} × {grid} cells on {ranks} rank{'s' * (ranks != 1)}…")
            rows = [*result["rows"], _row(request, grid, ranks, settings, Path(folder) / "result.json")]
            tables = {"table_3": cellular_tables.table_3(rows), "table_4": cellular_tables.table_4(rows)}
            result |= {"rows": rows, **tables}
            if output is not None:
                save(result, output)
    return result


def _row(request: ParallelRequest, grid: int, ranks: int, settings: Sequence[str], path: Path) -> JsonObject:
    """Start the ranks, and return what they measured; they write it to `path`."""
    task = {
        "recipe": cellular_recipe.AS_PRINTED,
        # The same engine for all: a choice by measurement could differ between one core and ranks.
        "settings": [*settings, cellular_recipe.grid_setting(grid), *_ENGINE],
        **{name: getattr(request, name) for name in ("iterations", "batches", "repeats")},
    }
    words = [json.dumps(task), str(path)]
    launchers.run(launchers.command(request.launcher, ranks, "ganherd_benchmarks.cellular_rank", words))
    result = json.loads(path.read_text(encoding="utf-8"))
    facts = {"grid": grid, "cells": grid**2, "ranks": ranks, "oversubscribed": ranks > cores()}
    return cellular_tables.with_minutes({**facts, "batches": request.batches, **result})


def machine() -> str:
    """Return the processor and the number of cores that this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )
    return f"{name}, {cores()} cores"


def save(result: JsonObject, path: Path) -> None:
    """Write everything as .json, and the figure as .png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if result["table_3"]:
        cellular_picture.draw(result, path.with_suffix(".png"))
