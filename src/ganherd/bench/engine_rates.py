"""Measure the member-steps per second and the memory of ganherd's own engines.

An engine is how a training step of all members is executed: one after another (loop), fused, or as a CUDA graph. A
member-step is one training step of one member.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ganherd.herd.engine import autotune
from ganherd.herd.engine.engine_trials import measure_rate
from ganherd.herd.engine.engines import Plan, new_plan
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError


@dataclass(frozen=True)
class MeasuredWay:
    """The measured rate and memory of one way to train a herd."""

    rate: float  # member-steps per second
    peak: int  # largest number of bytes of tensors at one time; on a CPU, of the process
    reserved: int  # largest number of bytes that the allocator held for them
    engine: str
    threads: int
    note: str = ""  # a remark for the table


def measure_chosen(prepared: PreparedHerd, seconds: float, log: Callable[[str], None]) -> MeasuredWay:
    """Measure for about `seconds` the engine that `ganherd train` would choose."""
    herd = prepared.herd
    result = _measure(prepared, autotune.choose(herd, prepared.recipe.engine, log), seconds)
    why = autotune.cannot_be_fused(herd) if result.engine == "loop" else ""
    return replace(result, note=f"the nets cannot be fused ({why})") if why else result


def measure_engine(prepared: PreparedHerd, name: str, threads: int, seconds: float) -> MeasuredWay:
    """Measure one engine for about `seconds`; `name` is loop, fused or graph (which needs a GPU)."""
    herd = prepared.herd
    if name == "graph" and herd.device.type != "cuda":
        raise UserError("graph needs a GPU.")
    return _measure(prepared, new_plan(name, herd.num_members, threads, herd.device), seconds)


def _measure(prepared: PreparedHerd, plan: Plan, seconds: float) -> MeasuredWay:
    herd = prepared.herd
    reset_peaks(herd.device)
    speed = measure_rate(herd, plan, seconds)
    note = plan.describe(herd.num_members) if plan.name != "loop" and plan.chunk < herd.num_members else ""
    return MeasuredWay(speed, *peaks(herd.device), plan.name, plan.threads, note)


def best_threads(run: Callable[[float], MeasuredWay], device: torch.device, seconds: float) -> MeasuredWay:
    """Run a measurement and return its result; on a CPU, run it with one thread and with all, and return the faster.

    Args:
        run: The measurement; its argument is the number of seconds that it may take.
        seconds: The time for all measurements.
    """
    counts = sorted({1, torch.get_num_threads()}) if device.type == "cpu" else [torch.get_num_threads()]
    results = []
    for threads in counts:
        torch.set_num_threads(threads)
        results.append(run(seconds / len(counts)))
    return max(results, key=lambda one: one.rate)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; do nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peaks(device: torch.device) -> None:
    """Reset the peak memory of a GPU. The peak memory of a process on a CPU cannot be reset."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> tuple[int, int]:
    """Return the peak bytes of tensors and those that the allocator reserved; on a CPU both are the peak of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    resident = _resident()
    return resident, resident


def _resident() -> int:
    """Return the peak memory of this process in bytes.

    `getrusage` is only a fallback, because its value includes that of the process which started this one.
    """
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
