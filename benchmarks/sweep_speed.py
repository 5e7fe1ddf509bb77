"""Measure a sweep of many settings next to the same settings trained one after another, and in a process each.

    python benchmarks/sweep_speed.py -o benchmarks/results/sweep.json
    python benchmarks/sweep_speed.py mnist-wcgan-paper --set data.partition=all --set herd.members=1 --steps 1600 \\
        --processes 64 --process-steps 200 -o benchmarks/results/h200-sweep.json

All ways train the same settings to the same step. A setting then has the same score, whichever way it was trained (promise 1).
So the time to the best score is the time until all settings were trained, or, with halving, until the winner was.

`sweep` and `sweep --no-halving` are measured whole, from the command to the ranked table, scores included. The two others are
projected, without scores: from whole runs of single settings, and from `--processes` processes at the same time, of which each
trains `--process-steps` steps. Every row is saved as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ganherd.runs.folder import RunFolder
from ganherd.sweep import sweep_record
from ganherd.sweep.search_space import as_overrides
from ganherd.util.host import cores
from provenance import provenance

Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("recipe", nargs="?", default="digits-wcgan")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--vary", action="append", default=[])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("-n", "--samples", type=int, default=1000)
    parser.add_argument(
        "--only-halving", action="store_true", help="Leave out the sweep that trains all settings to the end."
    )
    parser.add_argument("--alone", type=int, default=3, help="Number of settings that train alone.")
    parser.add_argument("--processes", type=int, default=cores(), help="Number of processes at the same time.")
    parser.add_argument("--process-steps", type=int, help="Steps of each process. Default: all.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    args.vary = args.vary or ["optim.lr_g=1e-5..1e-2", "optim.lr_d=1e-5..1e-2"]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        ways = [sweep_with_halving, sweep_to_the_end, one_after_another, processes]
        for measure in [way for way in ways if way is not sweep_to_the_end or not args.only_halving]:
            rows.append(measure(args, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
            args.output.write_text(json.dumps({**facts(args), "rows": rows}, indent=1) + "\n")


def sweep_with_halving(args: argparse.Namespace, folder: Path) -> Row:
    """Train the settings as one computation, and stop the worse half again and again."""
    return {"way": "sweep", **_sweep(args, folder / "halving", [])}


def sweep_to_the_end(args: argparse.Namespace, folder: Path) -> Row:
    """Train all settings to the end as one computation."""
    return {"way": "sweep --no-halving", **_sweep(args, folder / "whole", ["--no-halving"])}


def _sweep(args: argparse.Namespace, folder: Path, options: Sequence[str]) -> Row:
    vary = [word for text in args.vary for word in ("--vary", text)]
    words = ["sweep", args.recipe, *vary, *_set(args.settings), "--trials", str(args.trials), *options]
    began = time.monotonic()
    _ganherd([*words, "--budget", f"{args.steps}steps", "-n", str(args.samples), "-o", str(folder), "--quiet"])
    seconds = time.monotonic() - began
    record = sweep_record.read(folder)
    assert record is not None
    last = [score for score in record.rungs[-1].scores if score.value is not None]
    best = min(last, key=lambda score: score.value or math.inf)
    trained = [RunFolder(folder / group.run).info.step for group in record.groups]
    assert max(step or 0 for step in trained) == args.steps
    return {
        "seconds": round(seconds, 1),
        "best": record.names[best.trial],
        "score": best.value,
        "rungs": [[rung.step, len(rung.scores)] for rung in record.rungs],
    }


def one_after_another(args: argparse.Namespace, folder: Path) -> Row:
    """Train a few settings alone, whole, and project how long all would take."""
    seconds = []
    for number, trial in enumerate(_trials(folder)[: args.alone]):
        began = time.monotonic()
        _ganherd(_train(args, trial, folder / f"alone-{number}", args.steps))
        seconds.append(time.monotonic() - began)
    projected = args.trials * sum(seconds) / len(seconds)
    return {"way": "one after another", "projected_seconds": round(projected, 1), "measured": _rounded(seconds)}


def processes(args: argparse.Namespace, folder: Path) -> Row:
    """Train many settings at the same time, a process each, and project how long all would take.

    A process takes as long as it took, and each step that is still missing as long as a step of its second half.
    """
    steps = args.process_steps or args.steps
    trials = [trial for trial, _ in zip(_trials(folder), range(args.processes), strict=False)]
    runs = [folder / f"process-{number}" for number in range(len(trials))]
    every = ["run.record_every=" + str(max(1, steps // 10))]
    commands = [_train(args, trial, run, steps, every) for trial, run in zip(trials, runs, strict=True)]
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [_start(command, environment) for command in commands]
    failed = sum(process.wait() != 0 for process in started)
    assert not failed, f"{failed} of {len(started)} processes failed"
    seconds = time.monotonic() - began
    whole = seconds + (args.steps - steps) * max(_seconds_per_step(run) for run in runs)
    rounds = math.ceil(args.trials / len(trials))
    return {
        "way": f"{len(trials)} processes at the same time",
        "projected_seconds": round(rounds * whole, 1),
        "measured": {"seconds": round(seconds, 1), "steps": steps, "processes": len(trials)},
    }


def _seconds_per_step(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[len(lines) // 2 - 1], lines[-1]
    return float(last["seconds"] - first["seconds"]) / (last["step"] - first["step"])


def _trials(folder: Path) -> list[list[str]]:
    """Return the settings of each trial of the measured sweep, as `--set` takes them."""
    record = sweep_record.read(folder / "halving")
    assert record is not None
    return [as_overrides(trial) for trial in record.trials]


def _train(args: argparse.Namespace, trial: list[str], run: Path, steps: int, more: Sequence[str] = ()) -> list[str]:
    settings = [*args.settings, *trial, f"train.budget={steps}steps", "run.scores=false", *more]
    return ["train", args.recipe, *_set(settings), "--run", str(run), "--quiet"]


def _set(settings: Sequence[str]) -> list[str]:
    return [word for text in settings for word in ("--set", text)]


def _ganherd(words: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "ganherd", *words], check=True, stdout=subprocess.DEVNULL)


def _start(words: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ganherd", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [round(second, 1) for second in seconds]


def facts(args: argparse.Namespace) -> Row:
    """Return what the rows were measured on."""
    return {
        **provenance(),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "cores": cores(),
        "torch": torch.__version__,
        "trials": args.trials,
        "steps": args.steps,
    }


if __name__ == "__main__":
    main()
