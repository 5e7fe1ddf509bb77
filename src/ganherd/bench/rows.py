"""Measure rows of the fusion benchmark in a separate process, and print each as a line of JSON.

Run as `python -m ganherd.bench.rows CASE MEMBERS WAY SECONDS DEVICE PRECISION`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from ganherd.bench.cases import Case, as_file, images, known, recipe_of
from ganherd.bench.checkout import benchmark_module
from ganherd.bench.engine_rates import MeasuredWay, measure_chosen, measure_engine
from ganherd.herd.engine.device import device_of, set_precision
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError, first_line, with_type


def main(name: str, members: str, way: str, seconds: str, device: str, precision: str) -> None:
    """Measure and print one row for each number of members (separated by commas), up to the first that fails."""
    for number in members.split(","):
        row: dict[str, Any] = {"case": name, "members": int(number), "way": way}
        try:
            result = measure(name, int(number), way, float(seconds), device, precision)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({**row, "error": reason(error)}), flush=True)
            return
        row |= {
            "engine": result.engine,
            "threads": result.threads,
            "member_steps_per_second": result.rate,
            "images_per_second": result.rate * known(name).batch,
            "peak_bytes": result.peak,
            "reserved_bytes": result.reserved,
            "note": result.note,
        }
        print(json.dumps(row), flush=True)


def measure(name: str, members: int, way: str, seconds: float, device: str, precision: str) -> MeasuredWay:
    """Measure one way to train this many members."""
    case = known(name)
    recipe = recipe_of(case, members, "random", device, precision)
    set_precision(recipe)
    if way in ("ours", "loop", "fused", "graph"):
        return _measure_own(case, members, way, seconds, device, precision)
    if way == "processes":
        rivals = benchmark_module("processes", f"the way {way}")
        result: MeasuredWay = rivals.processes(name, members, seconds, device, precision)
        return result
    rivals, where = benchmark_module("ways", f"the way {way}"), device_of(recipe)
    torch.backends.cudnn.benchmark = True  # the shapes stay the same
    work = rivals.RivalWork.of(case, recipe, torch.from_numpy(images(case)), where)
    return _best(lambda share: rivals.PLAIN[way](work, members, share), where, seconds)


def _measure_own(case: Case, members: int, way: str, seconds: float, device: str, precision: str) -> MeasuredWay:
    with as_file(case) as path:
        prepared = assemble(recipe_of(case, members, path, device, precision))
    if way == "ours":
        return measure_chosen(prepared, seconds, lambda text: print(text, file=sys.stderr, flush=True))
    return _best(
        lambda share: measure_engine(prepared, way, torch.get_num_threads(), share), prepared.herd.device, seconds
    )


def _best(run: Callable[[float], MeasuredWay], device: torch.device, seconds: float) -> MeasuredWay:
    """Return the faster of one thread and all threads on a CPU."""
    counts = sorted({1, torch.get_num_threads()}) if device.type == "cpu" else [torch.get_num_threads()]
    results = []
    for threads in counts:
        torch.set_num_threads(threads)
        results.append(run(seconds / len(counts)))
    return max(results, key=lambda one: one.rate)


def reason(error: Exception) -> str:
    """Return in one line why a row has no number."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return first_line(error) if isinstance(error, UserError) else with_type(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
