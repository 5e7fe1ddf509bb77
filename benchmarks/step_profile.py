"""Profile a training step on a GPU: the time of each kernel, by name, in the order of what takes longest.

    python benchmarks/step_profile.py cifar10-conditional --set nets.generator.width=256 -o FILE.json
    python benchmarks/step_profile.py dcgan64:8 -o FILE.json

A recipe trains on random images of `--shape`. CASE:MEMBERS is a case of `ganherd bench fusion` in bf16. Kernels are counted
in replays of the captured graph, as a run makes them. Those of several streams overlap, so all together may exceed the step.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from ganherd.bench import cases
from ganherd.herd.engine import autotune
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engine_trials import trial_engine
from ganherd.herd.engine.engines import StackedHerd
from ganherd.recipe import recipe_file
from ganherd.recipe.sections.train_config import EngineConfig
from ganherd.training.setup.assemble import assemble
from ganherd.util.host import torch_threads
from provenance import provenance

_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="A recipe, or CASE:MEMBERS.")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--shape", default="3,32,32")
    parser.add_argument("--top", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path, help="Rows are added to this file.")
    args = parser.parse_args()
    name, _, members = args.recipe.partition(":")
    if members:
        case = cases.known(name)
        with cases.as_file(case) as path:
            recipe = cases.recipe_of(case, int(members), path, "cuda", "bf16")
            set_precision(recipe)
            herd = assemble(recipe).herd
        report(measure(herd, recipe.engine, args.top), args.output)
        return
    with tempfile.TemporaryDirectory() as folder:
        shape = tuple(int(edge) for edge in args.shape.split(","))
        images = np.random.default_rng(0).integers(0, 256, (5000, *shape), dtype=np.uint8)
        np.savez(Path(folder) / "random.npz", x=images, y=np.arange(5000) % 10)
        source = f"data.source={folder}/random.npz"
        recipe = recipe_file.load(args.recipe, [source, "data.holdout=0", *args.settings])
        report(measure(assemble(recipe, trust_code=True).herd, recipe.engine, args.top), args.output)


def report(row: dict[str, object], output: Path | None) -> None:
    """Print a row, and add it to a file."""
    print(json.dumps(row, indent=1))
    if output:
        old = json.loads(output.read_text())["rows"] if output.exists() else []
        rows = [*old, {**provenance(), **row}]
        output.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")


def measure(herd: StackedHerd, settings: EngineConfig, top: int) -> dict[str, object]:
    """Return milliseconds of a step, and of its kernels by name."""
    plan = autotune.choose(herd, settings, lambda text: None)
    with torch_threads(plan.threads):
        engine = trial_engine(herd, plan)
        engine.prepare(lambda done, total: None)
        sums = engine.herd.zero_sums()
        engine.advance(0, _STEPS, sums)
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.advance(_STEPS, 3 * _STEPS, sums)
        torch.cuda.synchronize()
        step = (time.perf_counter() - began) / (2 * _STEPS) * 1e3
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            engine.advance(3 * _STEPS, 4 * _STEPS, sums)
            torch.cuda.synchronize()
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[short(event.name)].append(event.device_time / 1e3)
    busy = sum(sum(times) for times in kernels.values()) / _STEPS
    rows = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:top]
    return {
        "engine": plan.name,
        "member_steps_per_second": engine.herd.num_members / step * 1e3,
        "step_ms": round(step, 4),
        "kernels_ms": round(busy, 4),
        "launches": sum(map(len, kernels.values())) / _STEPS,
        "kernels": {name: [round(sum(times) / _STEPS, 4), len(times) / _STEPS] for name, times in rows},
    }


def short(name: str) -> str:
    """Return the name of a kernel without its template arguments.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)")
    'vectorized_elementwise_kernel CUDAFunctor_add'
    """
    inner = re.findall(r"(\w*Functor\w*|\w+_kernel_cuda\w*)", name)
    base = re.sub(r"<.*", "", name).rpartition("::")[2].removeprefix("void ").partition("(")[0]
    return " ".join(dict.fromkeys([base, *inner[:2]]))


if __name__ == "__main__":
    main()
