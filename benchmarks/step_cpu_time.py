"""Compare a step of ganherd's engines with plain PyTorch on a CPU by CPU time, which other processes disturb less than the clock.

    python benchmarks/step_cpu_time.py --cases small,mlp --members 1,10 -o FILE.json

All ways have one thread and take turns of a few steps in one process. A row has the median of the CPU time of a step, and of the
ratio to plain PyTorch in the same turn: above 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ganherd.bench.cases import as_file, images, known, recipe_of
from ganherd.herd.engine.engine_trials import trial_engine
from ganherd.herd.engine.engines import new_plan
from ganherd.training.setup.assemble import assemble
from ganherd_benchmarks.plain import PlainGanPair, RivalWork
from provenance import provenance

_STEPS = 24  # of each turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="small,mlp")
    parser.add_argument("--members", default="1,10")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.cases.split(","):
        for members in map(int, args.members.split(",")):
            rows += measure(name, members, args.turns)
            print(json.dumps(rows[-3:]), flush=True)
    if args.output:
        args.output.write_text(json.dumps({**provenance(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


def measure(name: str, members: int, turns: int) -> list[dict[str, object]]:
    """Return a row for plain PyTorch and for each engine."""
    runs = ways(name, members)
    for run in runs.values():
        run(3)  # warms up
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(turns):
        for way, run in runs.items():
            began = time.process_time()
            run(_STEPS)
            seconds[way].append((time.process_time() - began) / _STEPS)
    return [
        {
            "case": name,
            "members": members,
            "way": way,
            "cpu_ms_per_step": round(1e3 * statistics.median(taken), 3),
            "against_eager": round(statistics.median(map(lambda a, b: a / b, seconds["eager"], taken)), 3),
        }
        for way, taken in seconds.items()
    ]


def ways(name: str, members: int) -> dict[str, Callable[[int], None]]:
    """Return functions that train for some steps, by way."""
    case = known(name)
    with as_file(case) as path:
        recipe = recipe_of(case, members, path, "cpu", "float32")
        herd = assemble(recipe).herd
    work = RivalWork.of(case, recipe, torch.from_numpy(images(case)), torch.device("cpu"))
    pairs = [PlainGanPair(work) for _ in range(members)]

    def eager(steps: int) -> None:
        for _ in range(steps):
            for pair in pairs:
                pair.step()

    def of_engine(engine_name: str) -> Callable[[int], None]:
        engine, done = trial_engine(herd, new_plan(engine_name, members, 1, torch.device("cpu"))), 0
        sums = engine.herd.zero_sums()

        def run(steps: int) -> None:
            nonlocal done
            done = engine.advance(done, done + steps, sums)

        return run

    return {"eager": eager, "loop": of_engine("loop"), "fused": of_engine("fused")}


if __name__ == "__main__":
    main()
