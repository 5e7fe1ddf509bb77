"""Rows of the fusion benchmark in a process of their own: CASE MEMBERS WAY SECONDS DEVICE PRECISION; a line of JSON each."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import torch

from ganherd.bench.cases import Case, known, recipe_of
from ganherd.bench.random_images import as_file, images
from ganherd.bench.rivals import ways
from ganherd.bench.rivals.plain import RivalWork
from ganherd.bench.rivals.processes import processes
from ganherd.bench.rivals.ways import MeasuredWay
from ganherd.herd.engine.device import device_of, set_precision
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError, first_line, with_type

PLAIN = {"eager": ways.eager, "streams": ways.streams, "grouped": ways.grouped, "compiled": ways.compiled}
ENGINES = ("loop", "fused", "graph")


def main(name: str, members: str, way: str, seconds: str, device: str, precision: str) -> None:
    """`members` may be several numbers with commas between; after one that fails the rest is left to another process."""
    for number in members.split(","):
        row: dict[str, Any] = {"case": name, "members": int(number), "way": way}
        try:
            found = measure(name, int(number), way, float(seconds), device, precision)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({**row, "error": reason(error)}), flush=True)
            return
        row |= {
            "engine": found.engine,
            "threads": found.threads,
            "member_steps_per_second": found.rate,
            "images_per_second": found.rate * known(name).batch,
            "peak_bytes": found.peak,
            "reserved_bytes": found.reserved,
            "note": found.note,
        }
        print(json.dumps(row), flush=True)


def measure(name: str, members: int, way: str, seconds: float, device: str, precision: str) -> MeasuredWay:
    """One way with so many members."""
    case = known(name)
    recipe = recipe_of(case, members, "random", device, precision)
    set_precision(recipe)
    if way == "processes":
        return processes(name, members, seconds, device, precision)
    if way in PLAIN:
        where = device_of(recipe)
        torch.backends.cudnn.benchmark = True  # as anyone does whose shapes stay the same
        work = RivalWork.of(case, recipe, torch.from_numpy(images(case)), where)
        return _best(lambda part: PLAIN[way](work, members, part), where, seconds)
    return _engine(case, members, way, seconds, device, precision)


def _engine(case: Case, members: int, way: str, seconds: float, device: str, precision: str) -> MeasuredWay:
    with as_file(case) as path:
        assembly = assemble(recipe_of(case, members, path, device, precision))
    if way == "ours":
        return ways.ours(assembly, seconds, lambda text: print(text, file=sys.stderr, flush=True))
    where = assembly.herd.device
    return _best(lambda part: ways.engine(assembly, way, torch.get_num_threads(), part), where, seconds)


def _best(run: Any, device: torch.device, seconds: float) -> MeasuredWay:
    """On a CPU with one thread and with all, whichever is faster."""
    counts = sorted({1, torch.get_num_threads()}) if device.type == "cpu" else [torch.get_num_threads()]
    found = []
    for threads in counts:
        torch.set_num_threads(threads)
        found.append(run(seconds / len(counts)))
    return max(found, key=lambda one: one.rate)


def reason(error: Exception) -> str:
    """Why a row has no number, in a line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return first_line(error) if isinstance(error, UserError) else with_type(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
