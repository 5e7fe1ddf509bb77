"""One row of the fusion benchmark in a process of its own: NET MEMBERS ENGINE SECONDS DEVICE PRECISION."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from ganherd import recipe_file
from ganherd.bench.fusion import CASES, SHAPES
from ganherd.herd.engine import Plan, rate
from ganherd.run.assemble import assemble, set_precision


def main(net: str, members: str, engine: str, seconds: str, device: str, precision: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.npz"
        np.savez(path, x=np.random.default_rng(0).integers(0, 256, (512, *SHAPES[net]), dtype=np.uint8))
        overrides = [
            *CASES[net][1],
            f"data.source={path}",
            "data.partition=all",
            f"herd.members={members}",
            f"engine.device={device}",
        ]
        recipe = recipe_file.load(recipe_file.DEFAULT, [*overrides, "train.n_critic=1", f"train.precision={precision}"])
        assembly = assemble(recipe)
    set_precision(recipe)
    herd = assembly.herd
    best: tuple[float, int] = (0.0, 1)
    for threads in sorted({1, torch.get_num_threads()}):
        plan = Plan(engine, herd.size, threads, str(herd.device))
        best = max(best, (rate(herd, plan, float(seconds) / 2), threads))
    peak = (
        torch.cuda.max_memory_allocated()
        if herd.device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    machine = (
        torch.cuda.get_device_name()
        if herd.device.type == "cuda"
        else f"{os.cpu_count()} CPU cores, {platform.machine()}"
    )
    row = {
        "net": net,
        "members": herd.size,
        "engine": engine,
        "threads": best[1],
        "member_steps_per_second": best[0],
        "images_per_second": best[0] * recipe.train.batch,
        "peak_bytes": peak,
        "machine": f"{machine}, PyTorch {torch.__version__}, {recipe.train.precision}",
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
