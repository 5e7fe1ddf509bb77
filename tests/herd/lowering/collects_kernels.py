"""Run by `test_compile_ahead.py`: collect the kernels of a step without a GPU, compile them for one, and print what happened.

The driver is a stand-in, so launches do nothing; Triton's compiler is the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver

from ganherd.herd.engine import engines
from ganherd.herd.lowering.kernels import compile_ahead
from ganherd.herd.lowering.kernels.convolution import conv
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble

TARGET = GPUTarget("cuda", 90, 32)


class Launcher:
    """Stands in for the C code that launches a kernel: a file for each one that is built, by any process."""

    def __init__(self, source: Any, metadata: Any) -> None:
        (Path(os.environ["GANHERD_CACHE"]) / f"{metadata.hash}.launcher").touch()


class NoGpu:
    """What Triton asks of a driver before it launches anything."""

    launcher_cls = Launcher

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def _launchers() -> int:
    """Return how many kernels the cache has whose launcher is built, too; no process writes to it for these any more."""
    return len(list(Path(os.environ["GANHERD_CACHE"]).glob("*.launcher")))


def _convolve() -> None:
    """Launch a kernel that gets descriptors of boxes instead of pointers."""
    x, taps = torch.zeros(1, 1, 8, 8, 16, dtype=torch.bfloat16), torch.zeros(1, 1, 16, 64, dtype=torch.bfloat16)
    conv.gather(x, taps, None, conv.ConvSpec((8, 8), WeightLayout(1), 1, 0, False, False))


def main(recipe: str, folder: str) -> None:
    driver.set_active(NoGpu())
    compile_ahead.use_cache()
    engines.has_kernels = lambda herd: True  # type: ignore[assignment]
    compiled = {True: 0, False: 0}  # by whether the cache had the kernel

    def listen(*, cache_hit: bool, **_: Any) -> None:
        compiled[cache_hit] += 1

    knobs.compilation.listener = listen
    CompiledKernel._init_handles = lambda kernel: None
    CompiledKernel.run = property(lambda kernel: lambda *args: None)
    CompiledKernel.launch_metadata = lambda *args: None
    herd = assemble(recipe_file.load(json.loads(recipe))).herd
    engine = engines.Engine(herd, engines.Plan("fused", herd.num_members, 1, "cpu"))
    with compile_ahead.collected() as sources:
        engine.advance(0, 1, herd.zero_sums())
        _convolve()
    facts: dict[str, Any] = {"collected": len(sources), "compiled while collecting": sum(compiled.values())}
    facts["collected with boxes"] = sum("tensordesc" in str(source.signature) for source in sources)
    facts["cached before"] = sum(source.is_cached(TARGET) for source in sources)
    reports: list[tuple[int, int]] = []
    compile_ahead.compile_kernels(sources, lambda done, total: reports.append((done, total)))
    facts |= {"reports": reports, "cached": sum(source.is_cached(TARGET) for source in sources)}
    facts["launchers"] = _launchers()
    engine.advance(0, 1, herd.zero_sums())
    _convolve()
    facts |= {"found at launch": compiled[True], "compiled at launch": compiled[False]}
    shutil.move(os.environ["GANHERD_CACHE"], folder)
    with compile_ahead.compiling(sources):
        ends = time.monotonic() + 300
        while _launchers() < len(sources) and time.monotonic() < ends:  # a worker writes the launcher after the kernel
            time.sleep(0.05)
    facts["compiled in the background"] = sum(source.is_cached(TARGET) for source in sources)
    shutil.rmtree(os.environ["GANHERD_CACHE"])
    facts["cached without the cache"] = sum(source.is_cached(TARGET) for source in sources)
    os.environ["GANHERD_SHARED_CACHE"] = str(Path(folder) / Path(os.environ["GANHERD_CACHE"]).name)
    compile_ahead.use_cache()
    facts["cached in the shared cache"] = sum(source.is_cached(TARGET) for source in sources)
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
