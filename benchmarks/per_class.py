"""Measure per-class herds on a GPU: time, memory, utilisation, FID and IFID, at the end or along the way. Writes JSON, PNG.

python benchmarks/per_class.py cifar10-wcgan-paper cifar10-dccgan-paper        the papers' recipes in full
python benchmarks/per_class.py cifar10-perclass                                both phases, as the recipe has them
python benchmarks/per_class.py cifar10-perclass --start cifar10-conditional 450s --at 75s 150s
                                                                               the same, FID and IFID after each and in between
python benchmarks/per_class.py digits-wcgan --at 5s 10s -n 200 --metrics fid   a try on a CPU

Every number is of a run in a folder below --runs, trained by `ganherd train` and scored by `ganherd score`; another call with
the same folder resumes what was stopped. Next to the JSON: samples of every recipe, and the curve over time.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import ganherd
from command_line import command
from ganherd.runs.folder import RunFolder
from ganherd.viz import pictures

HERE = Path(__file__).parent / "results"
# What the papers print (not credible under the usual protocol), and what was measured elsewhere after 585 epochs
_PAPERS = {"utilisation": 0.875, "memory_mib_of_one": 7839}
PUBLISHED = {
    "cifar10-wcgan-paper": {"fid": 8.53, **_PAPERS, "elsewhere, 585 epochs, one seed": 132.9},
    "cifar10-dccgan-paper": {"fid": 9.41, **_PAPERS, "elsewhere, 585 epochs, one seed": 90.2},
    "cifar10-perclass": {"aim": {"fid": 18, "ifid": 40, "minutes": 10}},
}


class Gauge:
    """Record what nvidia-smi reports of the GPU while something runs, twice a second; nothing without a GPU."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, float]] = []  # when, share of the time that it was busy, MiB

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
                self.seen.append((time.time(), float(busy) / 100, float(used)))

    def facts(self, since: float, until: float) -> dict[str, float]:
        """Return what was recorded during the training, without the start and the scores."""
        busy = [(share, used) for when, share, used in self.seen if since <= when <= until]
        if not busy:
            return {}
        return {
            "utilisation": round(sum(share for share, _ in busy) / len(busy), 3),
            "peak_memory_mib": max(used for _, used in busy),
        }


def scored(run: Path, args: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    network = ["--network", args.network] if args.network else []
    result = json.loads(command("score", run, "--metrics", args.metrics, "-n", args.n, "--json", *network))
    return {"scores": result, "scoring_seconds": round(time.perf_counter() - began, 1)}


def trained(run: Path, *recipe: object, budget: str | None = None) -> dict[str, Any]:
    """Train a run or resume it, unless it has reached this budget already."""
    more = ["--budget", budget] if budget else []
    command("train", *(["--resume", run] if (run / "run.json").exists() else [*recipe, "--run", run]), *more, "-q")
    return RunFolder.open(run).info.as_json()


def measured(row: dict[str, Any], args: argparse.Namespace) -> Iterator[None]:
    """Train the recipe of a row to each budget in turn, and score it there, unless the row has that score already."""
    recipe, points = row["recipe"], row.setdefault("points", [])
    run = args.runs / f"{recipe}-{args.seed}"
    settings = [word for one in (f"run.seed={args.seed}", *args.set) for word in ("--set", one)]
    if args.start and "start" not in row:
        all_classes, budget, *own = args.start
        first = args.runs / f"{all_classes}-{args.seed}"
        more = [word for one in own for word in ("--set", one)]
        info = trained(first, all_classes, *settings, *more, budget=budget)
        facts = {"recipe": all_classes, "run": str(first), "settings": own, "budget": budget, "steps": info["step"]}
        row["start"] = {**facts, "trained_seconds": round(info["seconds"], 1), **scored(first, args)}
        print(f"{facts} {values(row['start'])}", file=sys.stderr, flush=True)
        _keep_samples(first, args, all_classes)
        yield
    before = row["start"]["trained_seconds"] if args.start else 0.0
    first = RunFolder(run).first  # where the recipe itself has two phases
    settings += ["--set", f"herd.start_from={row['start']['run']}"] if args.start else []
    for budget in (args.at or [None])[len(points) :]:
        began, clock, gauge = time.perf_counter(), time.time(), Gauge()
        with gauge.reading():
            info = trained(run, recipe, *settings, budget=budget)
        wall = time.perf_counter() - began
        before = float(first.info.seconds) if first.info_path.is_file() else before
        ended = (run / "metrics.jsonl").stat().st_mtime
        point = {
            "budget": budget,
            "steps": info["step"],
            "trained_seconds": round(before + info["seconds"], 1),  # of both phases, if there are two
            "mixture_after_seconds": round((run / "mixture" / "mixture.json").stat().st_mtime - clock, 1),
            "wall_seconds": round(wall, 1),  # with the scores that `ganherd train` takes itself
            **gauge.facts(max(clock, ended - info["seconds"]), ended),
        }
        points.append({**point, **scored(run, args)})
        print(f"{recipe} {point} {values(points[-1])}", file=sys.stderr, flush=True)
        _keep_samples(run, args, recipe)
        yield


def values(point: dict[str, Any]) -> dict[str, float]:
    return {name: one["value"] for name, one in point["scores"].get("scores", {}).items() if "value" in one}


def _keep_samples(run: Path, args: argparse.Namespace, recipe: str) -> None:
    args.o.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "samples" / "final.png", args.o.with_name(f"{args.o.stem}-{recipe}.png"))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw FID and IFID over the seconds of training, a line for each recipe."""
    figure, axes = pictures.new_figure(9, 3.4, columns=2)
    for axis, name in zip(axes, ("fid", "ifid"), strict=True):
        for row in rows:
            points = [*([row["start"]] if "start" in row else []), *row["points"]]
            curve = [(one["trained_seconds"] / 60, values(one)[name]) for one in points if name in values(one)]
            axis.plot(*zip(*curve, strict=True), marker="o", label=row["recipe"]) if curve else None
        axis.set(xlabel="minutes of training", title=name.upper(), ylim=(0, None))
        axis.legend(fontsize=8, frameon=False) if axis.lines else None
    pictures.save(figure, path)


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
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    facts = {
        "command": " ".join(["python", "benchmarks/per_class.py", *sys.argv[1:]]),
        "machine": f"{machine}, PyTorch {torch.__version__}",
        "ganherd": ganherd.__version__,
    }
    before = json.loads(args.o.read_text()) if args.o.exists() else {}
    known = (
        {row["recipe"]: row for row in before.get("recipes", [])} if before.get("command") == facts["command"] else {}
    )
    rows = []
    for recipe in args.recipes:
        published = {"published": PUBLISHED[recipe]} if recipe in PUBLISHED else {}
        rows.append(known.get(recipe, {"recipe": recipe, **published}))
        for _ in measured(rows[-1], args):  # after each number, lest one be lost
            args.o.write_text(json.dumps({**facts, "recipes": rows}, indent=1) + "\n")
            draw(rows, args.o.with_suffix(".png"))
    print(args.o, file=sys.stderr)


if __name__ == "__main__":
    main()
