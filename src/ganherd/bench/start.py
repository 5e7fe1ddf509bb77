"""Measure the seconds from `ganherd train` to its first recorded step, with empty caches and with filled ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ganherd.bench import own_nets
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import text_table

Row = JsonObject
STEPS = 20  # number of steps that each run trains
_POLL = 0.01  # seconds between two checks for the first record
_RANDOM_IMAGES = 2_000


@dataclass(frozen=True)
class StartCase:
    """A recipe to start, and what is changed in it for the measurement."""

    recipe: str
    shape: tuple[int, int, int] | None = None  # of random images that replace its data; None: keep its embedded data
    settings: tuple[str, ...] = ()  # as for --set


_OWN = ("nets.generator=own_nets:OwnGenerator", "nets.discriminator=own_nets:OwnDiscriminator")
CASES = {
    "wcgan": StartCase("cifar10-wcgan-paper", (3, 32, 32)),
    "gap": StartCase("cifar10-gap-d4", (3, 32, 32)),
    "cellular": StartCase("mnist-cellular-4x4", (1, 28, 28), ("strategy.cellular.mixing.network=pixels",)),
    "residual": StartCase("cifar10-conditional", (3, 32, 32)),
    "own": StartCase("cifar10-dcgan", (3, 32, 32), _OWN),
    "default": StartCase("digits-wcgan"),
}
ON_GPU, ON_CPU = ("wcgan", "gap", "cellular", "residual", "own"), ("default",)


def check(names: Sequence[str]) -> None:
    """Raise a UserError for an unknown case."""
    if unknown := next((name for name in names if name not in CASES), None):
        raise UserError(f"Unknown case {unknown!r}; choose from {', '.join(CASES)}.")


def default_cases() -> Sequence[str]:
    """Return the names of the default cases for this machine, with or without a GPU."""
    import torch

    return ON_GPU if torch.cuda.is_available() else ON_CPU


def measure(names: Sequence[str], settings: Sequence[str], log: Callable[[str], None]) -> list[Row]:
    """Start each case twice, with empty caches (cold) and with those of the first start (warm); return a row for each.

    Args:
        names: The names of the cases.
        settings: Further settings for all recipes, as for `--set`.
        log: Receives the result of each start.
    """
    alone = pytorch_alone()
    log(f"PyTorch alone, imported and used once: {alone:.1f} s")
    rows = []
    for name in names:
        with TemporaryDirectory() as folder:
            _prepare(CASES[name], Path(folder))
            for state in ("cold", "warm"):
                seconds = _start(CASES[name], settings, Path(folder), state)
                row = {"case": name, "start": state, **seconds, "pytorch_seconds": alone}
                log(f"{name}, {state}: first step after {row['first_step_seconds']:.1f} s")
                rows.append(row)
    return rows


def pytorch_alone() -> float:
    """Return the seconds that a process takes to import PyTorch and use the device once, which no start can go below."""
    use = "import torch; torch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')"
    command = [sys.executable, "-c", use]
    subprocess.run(command, check=True)  # from here on the files are in memory
    began = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - began


def _prepare(case: StartCase, folder: Path) -> None:
    """Write the files that both starts of a case read into a folder: nets, and random images if the case uses them."""
    shutil.copy(own_nets.__file__, folder)
    if case.shape:
        images = np.random.default_rng(0).integers(0, 256, (_RANDOM_IMAGES, *case.shape), dtype=np.uint8)
        np.savez(folder / "random.npz", x=images, y=np.arange(_RANDOM_IMAGES) % 10)


def _start(case: StartCase, settings: Sequence[str], folder: Path, name: str) -> Row:
    """Train a case for a few steps in a separate process; return the seconds to the first record and to the end."""
    changes = [*case.settings, *settings, "run.scores=false", "run.record_every=1", f"train.budget={STEPS}steps"]
    if case.shape:
        changes.append("data.source=random.npz")
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "ganherd", "train", case.recipe, *words, "--run", name, "--quiet"]
    caches = {"GANHERD_CACHE": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "cache" / "triton")}
    began, first = time.monotonic(), None
    errors = folder / "errors.txt"
    with errors.open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **caches}, stdout=subprocess.DEVNULL, stderr=log
        )
        records = folder / name / "metrics.jsonl"
        try:
            while process.poll() is None:
                if first is None and records.is_file() and records.stat().st_size:
                    first = time.monotonic() - began
                time.sleep(_POLL)
        finally:  # also after Ctrl-C
            process.kill()
            process.wait()
    if process.returncode or first is None:
        raise UserError(f"{' '.join(command[2:5])} failed: {errors.read_text().strip()[-300:]}")
    return {"recipe": case.recipe, "first_step_seconds": first, "all_seconds": time.monotonic() - began}


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a text table."""
    times = {
        "pytorch_seconds": "PyTorch alone",
        "first_step_seconds": "first step",
        "all_seconds": f"{STEPS} steps and mixture",
    }
    head = ("case", "recipe", "start", *times.values())
    body = [(row["case"], row["recipe"], row["start"], *(f"{row[key]:.1f} s" for key in times)) for row in rows]
    return "\n".join(text_table([head, *body], right={3, 4, 5}))


def save(rows: Sequence[Row], settings: Sequence[str], path: Path) -> None:
    """Write the rows to a JSON file, with the command, the date, the machine and the version of torch."""
    import torch

    facts = {
        "command": " ".join(["ganherd bench start", *(f"--set {change}" for change in settings)]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "rows": list(rows),
    }
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
