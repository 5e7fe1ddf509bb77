"""Measure rows of `ganherd bench fusion` in a separate process, and print each as a line of JSON.

Run as `python -m ganherd.bench.rows CASE MEMBERS WAY SECONDS DEVICE PRECISION`. A way is a method to train many GANs;
see `WAYS` in `throughput.py`.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import torch

from ganherd.bench.cases import as_file, known, recipe_of
from ganherd.bench.checkout import benchmark_module
from ganherd.bench.engine_rates import MeasuredWay, best_threads, measure_chosen, measure_engine
from ganherd.bench.throughput import OURS
from ganherd.herd.engine.device import set_precision
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError, first_line, with_type


def main(name: str, members: str, way: str, seconds: str, device: str, precision: str) -> None:
    """Measure and print a row for each number of members, until one fails; the arguments are those of the command line.

    Args:
        name: The name of the case.
        members: Numbers of members, separated by commas.
        way: A key of `WAYS`.
        seconds: The time to measure each row.
    """
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
    """Measure one way to train this many members of a case, for about `seconds`."""
    if way not in OURS:
        rivals = benchmark_module("ways", f"the way {way}")
        result: MeasuredWay = rivals.measure(name, members, way, seconds, device, precision)
        return result
    case = known(name)
    with as_file(case) as path:
        recipe = recipe_of(case, members, path, device, precision)
        set_precision(recipe)
        prepared = assemble(recipe)
    if way == "ours":
        return measure_chosen(prepared, seconds, lambda text: print(text, file=sys.stderr, flush=True))
    return best_threads(
        lambda share: measure_engine(prepared, way, torch.get_num_threads(), share), prepared.herd.device, seconds
    )


def reason(error: Exception) -> str:
    """Return in one line why a measurement failed."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return first_line(error) if isinstance(error, UserError) else with_type(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
