"""Profile what a `ganherd train` command does before its first step, with nothing compiled or measured before.

    python benchmarks/cold_start.py -o FILE.json -- cifar10-conditional --budget 50steps

A thread samples the main thread's stack and books each sample on a phase (importing, data, measuring an engine, training, …)
and, within it, on an activity (compiling, timing tiles, capturing, …). Triton's listener counts the kernels that were compiled.
The caches of ganherd and Triton are an empty temporary folder unless --warm is given.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

_INTERVAL = 0.01  # seconds between samples
# (part of a file's path, function) -> phase; the outermost match of a stack wins
PHASES = {
    ("training/loop.py", "train"): "training loop",
    ("training/finish.py", ""): "mixture",
    ("herd/engine/cuda_graph.py", "prepare"): "compiling and capturing",
    ("training/setup/net_guard.py", ""): "comparing the nets with plain PyTorch",
    ("scoring/", ""): "scores",
    ("report/", ""): "report",
    ("herd/engine/autotune.py", "cannot_be_fused"): "trying whether the nets can be fused",
    ("herd/engine/engine_trials.py", "memory_per_member"): "measuring memory",
    ("training/setup/assemble.py", ""): "data and initial weights",
    ("training/setup/member_data.py", ""): "data and initial weights",
    ("data/", ""): "data and initial weights",
    ("importlib/_bootstrap", ""): "importing",
    ("<frozen importlib", ""): "importing",
}
# the innermost match of a stack wins
ACTIVITIES = {
    ("kernels/compile_ahead.py", "compile_kernels"): "compiling in processes",
    ("kernels/tiles.py", "_seconds"): "timing candidate tiles",
    ("triton/compiler/", ""): "compiling kernels",
    ("triton/backends/", ""): "compiling kernels",
    ("herd/engine/cuda_graph.py", "_capture"): "capturing or warming up",
    ("herd/engine/cuda_graph.py", "_replay"): "replaying",
}


def _matches(frame: FrameType, rule: tuple[str, str]) -> bool:
    path, function = rule
    return path in frame.f_code.co_filename and function in ("", frame.f_code.co_name)


def phase_of(stack: list[FrameType]) -> tuple[str, str]:
    """Return phase and activity of a stack, outermost frame first."""
    phase = "other"
    for frame in stack:
        if frame.f_code.co_name == "measure_rate" and frame.f_code.co_filename.endswith("herd/engine/engine_trials.py"):
            phase = f"measuring engine {frame.f_locals['plan'].name}"
            break
        if match := next((name for rule, name in PHASES.items() if _matches(frame, rule)), None):
            phase = match
            break
    for frame in reversed(stack):
        if match := next((name for rule, name in ACTIVITIES.items() if _matches(frame, rule)), None):
            return phase, match
    return phase, "running"


def place_of(stack: list[FrameType]) -> str:
    """Return the innermost function of ganherd in a stack (innermost frame first), and the innermost of all."""
    own = next((frame for frame in stack if "/ganherd/" in frame.f_code.co_filename), None)
    return " > ".join(
        f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}" for frame in (own, *stack[:1]) if frame
    )


class Sampler(threading.Thread):
    """Count samples of the main thread's stack by phase and activity."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.places: Counter[str] = Counter()  # by the innermost function of ganherd and the innermost of all
        self.first: dict[str, float] = {}
        self.over = threading.Event()
        self.began = time.perf_counter()

    def run(self) -> None:
        main, last = threading.main_thread().ident, self.began
        while not self.over.wait(_INTERVAL):
            frame, stack = sys._current_frames().get(main or 0), []
            while frame:
                stack.append(frame)
                frame = frame.f_back
            now = time.perf_counter()
            where = phase_of(stack[::-1])
            self.seconds[where] += now - last
            self.places[place_of(stack)] += now - last
            self.first.setdefault(where[0], last - self.began)
            last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--warm", action="store_true", help="keep the caches that are there")
    parser.add_argument("--commit", default="", help="commit to record")
    parser.add_argument("words", nargs="+", help="what follows `ganherd train`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.warm:
            os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
            os.environ["GANHERD_CACHE"] = f"{folder}/ganherd"
        sampler = Sampler()
        sampler.start()
        kernels = _count_kernels()
        from ganherd.cli.main import main as ganherd

        sys.argv = ["ganherd", "train", *options.words, "--run", f"{folder}/run"]
        try:
            ganherd()
        except SystemExit as ended:
            if ended.code:
                raise
        sampler.over.set()
        wall = time.perf_counter() - sampler.began
        result = _result(options, sampler, kernels, wall)
    for place, seconds in result["places"].items():
        print(f"{seconds:8.2f} s  {place}")
    for row in result["phases"]:
        print(f"{row['seconds']:8.1f} s  from {row['from']:6.1f} s  {row['phase']}: {row['activities']}")
    print({name: value for name, value in result.items() if name not in ("phases", "places")})
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


def _count_kernels() -> dict[str, list[float]]:
    """Return a dictionary that fills with the seconds of every compilation, by kernel."""
    seconds: dict[str, list[float]] = defaultdict(list)
    try:
        import triton
    except ImportError:
        return seconds

    def listen(src: Any, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seconds[getattr(src, "name", "?")].append(times.total / 1e6)

    triton.knobs.compilation.listener = listen
    return seconds


def _result(
    options: argparse.Namespace, sampler: Sampler, kernels: dict[str, list[float]], wall: float
) -> dict[str, Any]:
    import torch

    by_phase: dict[str, dict[str, float]] = defaultdict(dict)
    for (phase, activity), seconds in sampler.seconds.items():
        by_phase[phase][activity] = round(seconds, 2)
    phases = [
        {
            "phase": phase,
            "from": round(sampler.first[phase], 2),
            "seconds": round(sum(parts.values()), 2),
            "activities": parts,
        }
        for phase, parts in by_phase.items()
    ]
    return {
        "command": f"python benchmarks/cold_start.py{' --warm' if options.warm else ''} -- {' '.join(options.words)}",
        "commit": options.commit,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count()},
        "wall_seconds": round(wall, 1),
        "kernels_compiled": sum(map(len, kernels.values())),
        "kernel_seconds": round(sum(map(sum, kernels.values())), 1),
        "kernels": {name: [len(all_of), round(sum(all_of), 1)] for name, all_of in sorted(kernels.items())},
        "places": {place: round(seconds, 2) for place, seconds in sampler.places.most_common(40)},
        "phases": sorted(phases, key=lambda row: row["from"]),
    }


if __name__ == "__main__":
    main()
