"""Per-class herds on a GPU: wall time, memory, utilisation, FID and IFID, once at the end or along the way. Writes JSON.

python benchmarks/per_class.py cifar10-wcgan-paper cifar10-dccgan-paper        the papers' recipes in full
python benchmarks/per_class.py cifar10-perclass --at 2m 4m 6m 8m 10m           FID and IFID over the time of training
python benchmarks/per_class.py cifar10-perclass --start cifar10-conditional 6m train.batch=128 --at 2m 4m
                                                                               one GAN of all classes first; in all 10 minutes
python benchmarks/per_class.py digits-wcgan --at 5s 10s -n 200 --metrics fid   a try on a CPU

Every number is of a run in a folder of its own (--runs), trained by `ganherd train` and scored by `ganherd score`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from called import command

import ganherd
from ganherd.run.folder import RunFolder

HERE = Path(__file__).parent / "results"
# What the papers print (not credible under the usual protocol), and what was measured elsewhere after 585 epochs
PUBLISHED = {
    "cifar10-wcgan-paper": {"fid": 8.53, "utilisation": 0.875, "elsewhere, 585 epochs, one seed": 132.9},
    "cifar10-dccgan-paper": {"fid": 9.41, "utilisation": 0.938, "elsewhere, 585 epochs, one seed": 90.2},
    "cifar10-perclass": {"aim": {"fid": 18, "ifid": 40, "minutes": 10}},
}


class Gauge:
    """What nvidia-smi says of the GPU while something runs, twice a second; nothing where there is none."""

    def __init__(self) -> None:
        self.busy: list[float] = []
        self.used: list[float] = []

    @contextmanager
    def reading(self) -> Any:
        over = threading.Event()
        reader = threading.Thread(target=self._read, args=(over,), daemon=True)
        if shutil.which("nvidia-smi"):
            reader.start()
        try:
            yield self
        finally:
            over.set()

    def _read(self, over: threading.Event) -> None:
        ask = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
        while not over.wait(0.5):
            done = subprocess.run(ask, capture_output=True, text=True)
            if done.returncode == 0:
                busy, used = done.stdout.splitlines()[0].split(",")
                self.busy.append(float(busy) / 100)
                self.used.append(float(used))

    def facts(self) -> dict[str, float]:
        if not self.busy:
            return {}
        return {"utilisation": round(sum(self.busy) / len(self.busy), 3), "peak_memory_mib": max(self.used)}


def scored(run: Path, asked: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[str, Any] = json.loads(
        command(
            "score",
            run,
            "--metrics",
            asked.metrics,
            "-n",
            asked.n,
            "--json",
            *(["--network", asked.network] if asked.network else []),
        )
    )
    return {"scores": found, "scoring_seconds": round(time.perf_counter() - began, 1)}


def measured(recipe: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The recipe trained to each of the budgets in turn, and scored there."""
    run, points = asked.runs / f"{recipe}-{asked.seed}", []
    settings = [word for one in (f"run.seed={asked.seed}", *asked.set) for word in ("--set", one)]
    before, started = 0.0, {}
    if asked.start:
        all_classes, budget, *own = asked.start
        first = asked.runs / f"{all_classes}-{asked.seed}"
        more = [word for one in own for word in ("--set", one)]
        command("train", all_classes, "--run", first, *settings, *more, "--budget", budget, "-q")
        info = RunFolder.open(first).info
        before = info["seconds"]
        facts = {"recipe": all_classes, "settings": own, "budget": budget, "steps": info["step"]}
        started = {"start": {**facts, "trained_seconds": round(before, 1), **scored(first, asked)}}
        print(f"{facts} {_values(started['start'])}", file=sys.stderr, flush=True)
        settings += ["--set", f"herd.start_from={first}"]
    for number, budget in enumerate(asked.at or [None]):
        began, clock, gauge = time.perf_counter(), time.time(), Gauge()
        more = ["--budget", budget] if budget else []
        with gauge.reading():
            command("train", *(["--resume", run] if number else [recipe, "--run", run, *settings]), *more, "-q")
        wall = time.perf_counter() - began
        info = RunFolder.open(run).info
        point = {
            "budget": budget,
            "steps": info["step"],
            "trained_seconds": round(before + info["seconds"], 1),  # of both phases, where there are two
            "mixture_after_seconds": round((run / "mixture" / "mixture.json").stat().st_mtime - clock, 1),
            "wall_seconds": round(wall, 1),  # with the scores that `ganherd train` takes itself
        }
        points.append({**point, **gauge.facts(), **scored(run, asked)})
        print(f"{recipe} {point} {gauge.facts()} {_values(points[-1])}", file=sys.stderr, flush=True)
    known = {"published": PUBLISHED[recipe]} if recipe in PUBLISHED else {}
    return {"recipe": recipe, **started, "points": points, **known}


def _values(point: dict[str, Any]) -> dict[str, Any]:
    return {name: one.get("value") for name, one in point["scores"].get("scores", {}).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--at", nargs="+", help="budgets, growing, as 2m 4m; default: the recipe's own")
    parser.add_argument("--start", nargs="+", metavar="RECIPE BUDGET [SETTING …]", help="what all members start from")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run")
    parser.add_argument("--metrics", default="fid,ifid,classifier_score,label_accuracy")
    parser.add_argument("--network", help="passed on to the scores")
    parser.add_argument("-n", type=int, default=50_000, help="samples for each score")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/per-class"))
    parser.add_argument("-o", type=Path, default=HERE / "per-class.json")
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    rows = []
    for recipe in asked.recipes:
        rows.append(measured(recipe, asked))
        told = {
            "command": " ".join(["python", "benchmarks/per_class.py", *sys.argv[1:]]),
            "ganherd": ganherd.__version__,
        }
        asked.o.parent.mkdir(parents=True, exist_ok=True)
        asked.o.write_text(json.dumps({**told, "recipes": rows}, indent=1) + "\n")  # after each, lest one be lost
    print(asked.o, file=sys.stderr)


if __name__ == "__main__":
    main()
