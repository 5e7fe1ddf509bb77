"""Measure on toys whether swapping discriminators finds more modes than separate GANs or one GAN. Writes JSON and PNG.

python benchmarks/gap_toys.py                        R15 at 100 points and 25 Gaussians at 2,500, seeds 0 to 9, two processes
python benchmarks/gap_toys.py --tune                 the settings that were tried first, on seeds 1000 to 1002
python benchmarks/gap_toys.py --full --device cuda   PacGAN's protocol on ring8 and grid25, with its table; --runs stores the
                                                     runs, and resumes those that were stopped
python benchmarks/gap_toys.py --as-described         R15 as the paper describes it, four that swap against four that never meet
python benchmarks/gap_toys.py --full --device cuda --set train.ema=0.999        with averages of the generators' weights

Three arms with the same updates for each member: one GAN, four that never meet, four that swap. All seeds of an arm are one run;
on a GPU the two arms of four are one run, with different first weights. One GAN of a seed is the first of its four separate
ones, so these two differ by what the other three add.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import ganherd
from existing_runs import run_main
from ganherd.data.shards.prepare import end_with_parent
from gap_arms import ARMS, BOTH, Job, work
from gap_toys_show import differences, draw, table, with_published
from provenance import provenance

HERE = Path(__file__).parent / "results"
_RATES = [
    f"optim.lr_g={g} optim.lr_d={d}"
    for g, d in (("1e-4", "1e-4"), ("1e-4", "3e-4"), ("3e-4", "3e-4"), ("1e-3", "1e-3"))
]
_SWAPS = ["strategy.gap.every=1epochs", "strategy.gap.every=10epochs", "strategy.gap.every=50epochs"]
# The learning rate was chosen for GANs apart by the modes of a member, as the paper tuned its single GAN; then how often they
# swap, by the modes with a share of the mixture. The recipes have what was chosen.
TRIED = {"apart": _RATES, "gap": [*_SWAPS, "strategy.gap.travels=all"]}
# Nets, points and steps of PacGAN's table, with the generators' and discriminators' updates of one each
FULL = (
    "train.budget=400epochs",
    "train.batch=100",
    "data.points=100000",
    "nets.generator={name: toy, width: 400, init: normal}",
    "nets.discriminator={name: toy, width: 200, layers: 3, activation: maxout, batch_norm: false, init: normal}",
    "optim.lr_g=1e-4",
    "optim.lr_d=1e-4",
    "optim.beta1=0.8",
)
FULL_GAP = ("strategy.gap.every=1epochs",)


def everyone(jobs: Sequence[Job], runs: Path, processes: int) -> list[dict[str, Any]]:
    """Run all jobs, the longest first, in several processes of one thread each, or in this one."""
    order = sorted(jobs, key=lambda job: (job.data != "grid25", job.arm == "one"))
    all_rows = []
    with ExitStack() as pool:
        each = map
        if processes:
            spawned = multiprocessing.get_context("spawn")
            each = pool.enter_context(ProcessPoolExecutor(processes, spawned, end_with_parent)).map
        for job, rows in zip(order, each(partial(work, runs=runs), order), strict=True):
            words = f"{job.recipe:<13} {' '.join(job.overrides)[:60]:<60} {rows[0]['seconds']:>7.1f} s"
            print(words, file=sys.stderr, flush=True)
            all_rows += rows
    return sorted(all_rows, key=lambda row: (row["data"], list(ARMS).index(row["arm"])))


def tune(args: argparse.Namespace, runs: Path) -> list[dict[str, Any]]:
    """Measure every setting that was tried: what the mean member and the mixture captured on the seeds for tuning."""
    jobs = [
        Job(data, arm, args.tuning_seed, args.tuning_seeds, (*_budget(args), *tried.split()))
        for data in args.data
        for arm, tried in args.try_ or [(arm, tried) for arm, each in TRIED.items() for tried in each]
    ]
    rows = []
    for number, job in enumerate(jobs):  # each in a separate folder: they differ in more than their recipes
        (runs / str(number)).mkdir(exist_ok=True)
        rows += everyone([job], runs / str(number), 0)
    return rows


def study(args: argparse.Namespace, runs: Path) -> list[dict[str, Any]]:
    jobs = []
    gpu = args.device.startswith("cuda")
    for data in args.data:
        for arm in [BOTH] if gpu else args.arms:
            more = (*FULL, *(FULL_GAP if arm in (BOTH, "gap") else ())) if args.full else ()
            settings = (*more, *_budget(args), *args.set)
            jobs.append(Job(data, arm, args.seed, args.seeds, settings, args.device, args.as_described))
    rows = everyone(jobs, runs, min(args.processes, len(jobs)))
    if not gpu:
        return rows
    # one GAN of a seed is the first of its four apart, up to rounding: on a GPU it is not trained twice
    singles = [_first(row) for row in rows if row["arm"] == "apart"]
    wanted = [row for row in [*singles, *rows] if row["arm"] in args.arms]
    return sorted(wanted, key=lambda row: (row["data"], list(ARMS).index(row["arm"])))


def _first(row: dict[str, Any]) -> dict[str, Any]:
    """Return the first member of every seed of an arm, as the arm of one GAN."""
    each = [{"seed": one["seed"], "mean": one["members"][0], "members": one["members"][:1]} for one in row["per_seed"]]
    slot = row["slots"][0]
    return {**row, "arm": "one", "recipe": f"{row['data']}-{ARMS['one']} (member {slot} of {row['recipe']})", "slots": [slot],
            "seconds": 0.0, "per_seed": each}  # fmt: skip


def _budget(args: argparse.Namespace) -> tuple[str, ...]:
    return (f"train.budget={args.steps}steps",) if args.steps else ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--data", nargs="+", choices=["r15", "grid25", "ring8"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), help="default: all that have a recipe")
    parser.add_argument("--steps", type=int, help="instead of the recipes' budgets")
    parser.add_argument(
        "--processes", type=int, help="at once; default: 2 with a thread each (on a GPU start MPS first)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every arm")
    parser.add_argument("--full", action="store_true", help="PacGAN's protocol; for a GPU")
    parser.add_argument("--as-described", action="store_true", help="the paper's priors and clipping, on R15 only")
    parser.add_argument("--tune", action="store_true", help="adds what was tried to the results")
    parser.add_argument(
        "--try", dest="try_", action="append", nargs=2, metavar=("ARM", "SETTINGS"), help="instead of all, with --tune"
    )
    parser.add_argument("--tuning-seed", type=int, default=1000)
    parser.add_argument("--tuning-seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, help="keep the runs here; default: they are thrown away")
    parser.add_argument(
        "-o",
        type=Path,
        help="default: gap-toys.json in benchmarks/results, or gap-toys-full.json, gap-toys-described.json",
    )
    args = parser.parse_args()
    if args.try_ and not args.tune:
        parser.error("--try goes with --tune")
    if args.set and args.tune:
        parser.error("--set goes without --tune, which has --try")
    if min(number for number in (args.steps, args.seeds, args.processes) if number is not None) < 1:
        parser.error("--steps, --seeds and --processes are at least 1")
    if args.as_described and (
        args.full or args.tune or (args.data or ["r15"]) != ["r15"] or "one" in (args.arms or [])
    ):
        parser.error("--as-described compares apart and gap on r15, without --full and --tune")
    args.arms = args.arms or (["apart", "gap"] if args.as_described else list(ARMS))
    args.data = args.data or (["r15"] if args.as_described else ["ring8", "grid25"] if args.full else ["r15", "grid25"])
    args.processes = args.processes or 2
    ending = "-full" if args.full else "-described" if args.as_described else ""
    path = args.o or HERE / f"gap-toys{ending}.json"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        rows = tune(args, runs) if args.tune else study(args, runs)
    seconds = round(time.perf_counter() - began, 1)
    old = json.loads(path.read_text()) if path.is_file() else {}
    if args.tune:
        print(table(rows))
        new = {**old, "tuning": [*old.get("tuning", []), *rows]}
    else:
        compared = differences(rows)
        print(with_published(rows, table(rows, compared)) if args.full else table(rows, compared))
        new = {
            **provenance(),
            "seconds": seconds,
            "processes": args.processes,
            "machine": platform.machine(),
            "ganherd": ganherd.__version__,
            "arms": rows,
            "differences": compared,
        }
        new |= {"tuning": old["tuning"]} if "tuning" in old else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(new, indent=1) + "\n")
    if not args.tune:
        draw(rows, path.with_suffix(".png"))
    print(f"{seconds:,.0f} s; {path}", file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
