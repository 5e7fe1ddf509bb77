"""Compare ranks of a per-class herd with as many unrelated runs of one class each: work per CPU-second, files, messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganherd.util.errors import UserError
from ganherd.util.text import text_table
from ganherd_benchmarks.launchers import process_environment

_IMAGES, _SIZE = 64, 16  # of a class


def measure(ranks: int, steps: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure both, one after the other: `ranks` processes at once, with one thread each."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _images(folder / "images", ranks)
        rows = {}
        for way in ("ranks", "alone"):
            say(f"{ranks} {'ranks of one herd' if way == 'ranks' else 'unrelated runs'}, {steps:,} steps…")
            rows[way] = _row(_run(folder / way, folder / "images", ranks, steps, way), ranks, steps)
    share = rows["ranks"]["work_per_cpu_second"] / rows["alone"]["work_per_cpu_second"]
    return {"ranks": ranks, "steps": steps, "cores": os.cpu_count(), "rows": rows, "share": share}


def _run(folder: Path, images: Path, ranks: int, steps: int, way: str) -> list[dict[str, Any]]:
    """Run one way, and return what each process counted."""
    from ganherd.data.shards.prepare import prepare

    folder.mkdir()
    counted = ["ganherd_benchmarks.counted", str(folder), "train"]
    commands = []
    if way == "ranks":
        prepare(images, folder / "data", _SIZE, "centre", None, 1, lambda *_: None)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        commands = [
            [*launch, "-m", "--", *counted, _recipe(folder, "data", steps), "--run", str(folder / "run"), "--quiet"]
        ]
    else:
        for k in range(ranks):
            own = folder / f"images-{k}"
            own.mkdir()
            (own / f"class{k}").symlink_to((images / f"class{k}").resolve())
            prepare(own, folder / f"data-{k}", _SIZE, "centre", None, 1, lambda *_: None)
            words = [_recipe(folder, f"data-{k}", steps), "--run", str(folder / f"run-{k}"), "--quiet"]
            commands.append(["-m", *counted, *words])
    environ = process_environment()
    running = [
        subprocess.Popen(
            [sys.executable, *words], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    errors = [each.communicate()[1] for each in running]
    for each, text in zip(running, errors, strict=True):
        if each.returncode:
            lines = text.strip().splitlines() or ["no message"]
            raise UserError(
                f"a process ended with code {each.returncode}: {next((x for x in lines if 'rror' in x), lines[-1])}"
            )
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("counted-*.json")]


def _row(found: list[dict[str, Any]], ranks: int, steps: int) -> dict[str, Any]:
    if len(found) != ranks:
        raise UserError(f"{len(found)} of {ranks} processes finished.")
    shards = Counter(path for each in found for path in each["files"] if "/shards/" in path)
    cpu = sum(each["cpu_seconds"] for each in found)
    return {
        "cpu_seconds": cpu,
        "work_per_cpu_second": ranks * steps / cpu,
        "messages": max(each["messages"] for each in found),
        "files": max(len(each["files"]) for each in found),
        "shards_of_a_process": max(sum(path in shards for path in each["files"]) for each in found),
        "processes_of_a_shard": max(shards.values(), default=0),
        "read_bytes": max(each["read_bytes"] for each in found),
    }


def _recipe(folder: Path, data: str, steps: int) -> str:
    path = folder / f"{data}.yaml"
    settings = {
        "data": {"source": str(folder / data), "holdout": 0.0},
        "nets": {"generator": "mlp", "discriminator": "mlp", "latent": 16},
        "loss": {"name": "non-saturating"},
        "train": {"batch": 32, "budget": f"{steps}steps"},
        "engine": {"name": "fused", "threads": 1, "device": "cpu"},
        "run": {"record_every": steps, "checkpoint_every": steps, "sample_every": 0, "watch": {"every": 0}},
    }
    path.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return str(path)


def _images(folder: Path, classes: int) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for k in range(classes):
        (folder / f"class{k}").mkdir(parents=True)
        for n in range(_IMAGES):
            Image.fromarray(random.integers(0, 256, (_SIZE, _SIZE, 3), np.uint8)).save(
                folder / f"class{k}" / f"{n}.png"
            )


def table(found: dict[str, Any]) -> str:
    """Return both rows as a table."""
    rows = [["", "CPU, s", "steps/CPU-s", "messages", "files", "shards", "read"]]
    for way, row in found["rows"].items():
        name = f"{found['ranks']} ranks" if way == "ranks" else f"{found['ranks']} unrelated runs"
        times = (f"{row[key]:.1f}" for key in ("cpu_seconds", "work_per_cpu_second"))
        counts = (f"{row[key]:,}" for key in ("messages", "files", "shards_of_a_process", "read_bytes"))
        rows.append([name, *times, *counts])
    lines = text_table(rows, right=range(1, 7))
    lines.append(
        f"Ranks do {100 * found['share']:.1f} % of the work of unrelated runs for each CPU-second, start and end included. "
        "Messages, files, shards, bytes: the most of any process."
    )
    return "\n".join(lines)
