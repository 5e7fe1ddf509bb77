"""Measure five lines of Python in a fresh environment: from the start of the process to a picture. Prints one JSON object.

python benchmarks/python_start.py > benchmarks/results/python-start.json
python benchmarks/python_start.py --rounds 1 --cores 2

The five lines load a user's own nets and images, train and save a picture. Each round has an empty home and an empty cache, as
after `pip install`. `seconds` is the time up to the saved picture, by the clock of another process; `first_picture` is when
training drew its first one. `cpu_seconds` and `load`, the load average of the machine at the start, show how much other programs
have slowed it down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from ganherd.util.host import cores
from ganherd.util.version import __version__
from provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
LINES = """\
import ganherd, numpy as np
from my_nets import MyGenerator, MyDiscriminator
data = np.load("images.npz")
run = ganherd.train(data=(data["x"], data["y"]), nets=(MyGenerator, MyDiscriminator))
run.sample(64).save("grid.png")
"""


def nets_of_the_readme() -> str:
    """Return the file my_nets.py that README tells people to write."""
    (block,) = [part for part in (ROOT / "README.md").read_text().split("```python\n")[1:] if "MyGenerator" in part]
    return block.partition("```")[0]


def measure(size: int, number_of_cores: int) -> dict[str, float | str]:
    """Run the five lines once in an empty folder, and return how long they took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digits = load_digits()
        images = [Image.fromarray((one * 15.9375).astype(np.uint8)).resize((size, size)) for one in digits.images]
        np.savez(folder / "images.npz", x=np.stack([np.asarray(one) for one in images]), y=digits.target)
        (folder / "my_nets.py").write_text(nets_of_the_readme())
        (folder / "five_lines.py").write_text(LINES)
        fresh = {"HOME": name, "GANHERD_CACHE": f"{name}/cache"}
        own = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        load, used = os.getloadavg()[0], cpu_seconds()
        began, clock = time.time(), time.monotonic()
        subprocess.run(
            [sys.executable, "five_lines.py"], cwd=folder, env={**own, **fresh}, check=True, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number_of_cores]),
        )  # fmt: skip
        seconds = time.monotonic() - clock
        assert (folder / "grid.png").read_bytes().startswith(b"\x89PNG")
        (run,) = (folder / "runs").iterdir()
        first = min(path.stat().st_mtime for path in (run / "samples").glob("step-*.png"))
        verdict = json.loads((run / "scores.json").read_text())["verdict"]["word"]
        return {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu_seconds() - used, 1),
            "first_picture": round(first - began, 1),
            "load": round(load, 1),
            "verdict": verdict,
        }


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--size", type=int, default=8, help="Width and height of the images in pixels.")
    args = parser.parse_args()
    rows = [measure(args.size, args.cores) for _ in range(args.rounds)]
    facts = {
        "benchmark": "python start",
        **provenance(),
        "machine": f"{platform.machine()}, {min(args.cores, cores())} cores",
        "versions": {"ganherd": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "lines": LINES.splitlines(),
        "images": [1797, 1, args.size, args.size],
    }
    print(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
