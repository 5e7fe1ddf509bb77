"""Measure the memory that the ranks of one machine take together while they train, and what they send. Prints JSON.

python benchmarks/ranks_memory.py --recipe mnist-cellular-4x4
python benchmarks/ranks_memory.py --recipe digits-cellular-3x3 --set strategy.cellular.grid=[4,4]
python benchmarks/ranks_memory.py --recipe mnist-cellular-4x4 --launcher "mpiexec -n 17"
python benchmarks/ranks_memory.py --recipe digits-cellular-3x3 --set strategy.cellular.grid=[4,4] \\
    --set train.precision=float64 --alone

By default 17 ranks (the cells of a 4 × 4 grid and a spare) train two iterations of ten steps, with their evaluations and
mixtures, and end with the mixture, scores and report. The cache is empty, so that the judge of mixtures is trained, too. Four
times a second the proportional set size of all processes is added up: private pages, and 1/n of the pages that n processes share.

`anonymous` is memory that belongs to no file. `exchange_mib` is what the rank with the most traffic received at each iteration;
`all_gather_mib` is what it would have received by an all-gather. With `--alone` the same recipe is also trained in one process,
and `largest_difference` is the largest difference between any numbers of the two herds. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ganherd.comm import heartbeat
from ganherd.util.paths import data_home

PERIOD = 0.25  # seconds
GIB = 2**20  # KiB, in which the system counts


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(name))
    pids = [pid]
    for one in pids:
        pids += children.get(one, [])
    return pids


def taken(pid: int) -> dict[str, int]:
    """Return KiB by kind; nothing for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def watch(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return the peak of all processes together, and of the largest process."""
    began, peak, largest, seconds = time.monotonic(), {"Pss": 0, "Pss_Anon": 0}, 0, 0.0
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        each = [usage for pid in family(process.pid) if (usage := taken(pid))]
        total = {name: sum(one.get(name, 0) for one in each) for name in peak}
        largest = max([largest, *(one["Pss"] for one in each)])
        if total["Pss"] > peak["Pss"]:
            peak, seconds = total, time.monotonic() - began
        time.sleep(PERIOD)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}")
    return {
        "gib": round(peak["Pss"] / GIB, 2),
        "anonymous_gib": round(peak["Pss_Anon"] / GIB, 2),
        "largest_process_gib": round(largest / GIB, 2),
        "peak_after_seconds": round(seconds, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def traffic(run: Path) -> dict[str, float]:
    """Return the MiB that a rank received at each exchange, from its last heartbeat."""
    met = [beat for beat in heartbeat.read(run / "ranks") if beat.exchanges]
    if not met:
        return {}
    most = max(met, key=lambda beat: beat.received / beat.exchanges)
    each = {"exchange_mib": most.received, "all_gather_mib": most.gathered}
    return {name: round(count / most.exchanges / 2**20, 3) for name, count in each.items()}


def difference(run: Path, other: Path) -> float:
    """Return the largest difference between numbers of the nets, optimisers and settings of two herds."""
    from ganherd.runs import checkpoint
    from ganherd.runs.folder import RunFolder, saved_steps
    from ganherd.training.setup.assemble import assemble

    nets = assemble(RunFolder(other).recipe, begins=False).herd.nets
    folders = [RunFolder(path).checkpoints for path in (run, other)]
    last = [checkpoint.path_of(folder, saved_steps(folder)[-1]) for folder in folders]
    actual, expected = (checkpoint.load(path, nets).state for path in last)
    names = [name for name in expected if name.startswith(("g.", "d.", "set."))]
    return max(float((actual[name].double() - expected[name].double()).abs().max()) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--ranks", type=int, default=17)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--launcher", help="what starts the ranks; else `ganherd train --ranks` does")
    parser.add_argument(
        "--alone", action="store_true", help="train the same in one process, too, and compare the herds"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "ganherd", "train", args.recipe, "--budget", "20steps", "--quiet"]
        for setting in ("strategy.cellular.iteration=10steps", *args.set):
            words += ["--set", setting]
        start = shlex.split(args.launcher) if args.launcher else []
        alone = [*words, "--run", f"{folder}/alone"]
        words = [*start, *words] if start else [*words, "--ranks", str(args.ranks)]
        words += ["--run", f"{folder}/run"]
        environment = {**os.environ, "GANHERD_DATA": str(data_home()), "GANHERD_CACHE": f"{folder}/cache"}
        result = {**watch(words, environment), **traffic(Path(folder) / "run")}
        if args.alone:
            subprocess.run(alone, env=environment, stdout=subprocess.DEVNULL, check=True)
            result["largest_difference"] = difference(Path(folder) / "run", Path(folder) / "alone")
    facts = {"recipe": args.recipe, "set": args.set, "ranks": args.ranks, "started_by": args.launcher or "--ranks"}
    print(json.dumps({**facts, **result}))


if __name__ == "__main__":
    main()
