"""How much memory the ranks of one machine take together while they train, and what they send. Prints one JSON object.

python benchmarks/ranks_memory.py --recipe mnist-cellular-4x4
python benchmarks/ranks_memory.py --recipe digits-cellular-3x3 --set strategy.cellular.grid=[4,4]
python benchmarks/ranks_memory.py --recipe mnist-cellular-4x4 --launcher "mpiexec -n 17"
python benchmarks/ranks_memory.py --recipe digits-cellular-3x3 --set strategy.cellular.grid=[4,4] \\
    --set train.precision=float64 --alone

By default 17 ranks, the cells of a 4 × 4 grid and a spare, make two iterations of ten steps, with their evaluations and
mixtures, and end with the mixture, scores and report; nothing is remembered of the data, so that the judge of mixtures is
trained, too. Four times a second the proportional set size of all processes is added up: private pages, and of those that n
processes share the n-th part. `anonymous` is what lies in no file. `exchange_mib` came to the rank to which most came, at each
iteration; `all_gather_mib` would have. With `--alone` the same is trained in one process: `largest_difference` is that of any
number of the two herds. Needs Linux.
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
    """A process and all that it, and they, have started."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def taken(pid: int) -> dict[str, int]:
    """KiB by kind; nothing of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def watch(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The peak of all its processes together, and of the one that took most by itself at any time."""
    began, peak, largest, seconds = time.monotonic(), {"Pss": 0, "Pss_Anon": 0}, 0, 0.0
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        each = [found for pid in family(process.pid) if (found := taken(pid))]
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
    """MiB that came to a rank at each exchange, as its heartbeat told it last."""
    met = [beat for beat in heartbeat.read(run / "ranks") if beat.exchanges]
    if not met:
        return {}
    most = max(met, key=lambda beat: beat.received / beat.exchanges)
    each = {"exchange_mib": most.received, "all_gather_mib": most.gathered}
    return {name: round(count / most.exchanges / 2**20, 3) for name, count in each.items()}


def difference(run: Path, other: Path) -> float:
    """The largest one of any number of the nets, optimisers and settings of two herds."""
    from ganherd.runs import checkpoint
    from ganherd.runs.folder import RunFolder
    from ganherd.training.setup.assemble import assemble

    nets = assemble(RunFolder(other).recipe, begins=False).herd.nets
    folders = [RunFolder(path).checkpoints for path in (run, other)]
    last = [checkpoint.path_of(folder, checkpoint.steps(folder)[-1]) for folder in folders]
    found, expected = (checkpoint.load(path, nets).state for path in last)
    names = [name for name in expected if name.startswith(("g.", "d.", "set."))]
    return max(float((found[name].double() - expected[name].double()).abs().max()) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--ranks", type=int, default=17)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--launcher", help="what starts the ranks; else `ganherd train --ranks` does")
    parser.add_argument(
        "--alone", action="store_true", help="train the same in one process, too, and compare the herds"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "ganherd", "train", asked.recipe, "--budget", "20steps", "--quiet"]
        for setting in ("strategy.cellular.iteration=10steps", *asked.set):
            words += ["--set", setting]
        start = shlex.split(asked.launcher) if asked.launcher else []
        alone = [*words, "--run", f"{folder}/alone"]
        words = [*start, *words] if start else [*words, "--ranks", str(asked.ranks)]
        words += ["--run", f"{folder}/run"]
        environment = {**os.environ, "GANHERD_DATA": str(data_home()), "GANHERD_CACHE": f"{folder}/cache"}
        found = {**watch(words, environment), **traffic(Path(folder) / "run")}
        if asked.alone:
            subprocess.run(alone, env=environment, stdout=subprocess.DEVNULL, check=True)
            found["largest_difference"] = difference(Path(folder) / "run", Path(folder) / "alone")
    facts = {"recipe": asked.recipe, "set": asked.set, "ranks": asked.ranks, "started_by": asked.launcher or "--ranks"}
    print(json.dumps({**facts, **found}))


if __name__ == "__main__":
    main()
