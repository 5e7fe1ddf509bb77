"""Measure the member-steps per second of ganherd's own engines, and the memory that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ganherd.bench.peak_memory import peaks, reset_peaks
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Plan, measure_rate
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError


@dataclass(frozen=True)
class MeasuredWay:
    """The rate that one way to train a herd reached, and how."""

    rate: float  # member-steps per second
    peak: int  # bytes of tensors at once
    reserved: int  # bytes that the allocator held for them
    engine: str
    threads: int
    note: str = ""  # what a reader should know


def measure_chosen(prepared: PreparedHerd, seconds: float, log: Callable[[str], None]) -> MeasuredWay:
    """Measure the engine that `ganherd train` would choose."""
    herd = prepared.herd
    result = _measure(prepared, autotune.choose(herd, prepared.recipe.engine, log), seconds)
    why = autotune.cannot_be_fused(herd) if result.engine == "loop" else ""
    return replace(result, note=f"the nets cannot be fused ({why})") if why else result


def measure_engine(prepared: PreparedHerd, name: str, threads: int, seconds: float) -> MeasuredWay:
    """Measure one engine: loop, fused or graph."""
    herd = prepared.herd
    if name == "graph" and herd.device.type != "cuda":
        raise UserError("graph needs a GPU.")
    return _measure(prepared, Plan(name, herd.num_members, threads, str(herd.device)), seconds)


def _measure(prepared: PreparedHerd, plan: Plan, seconds: float) -> MeasuredWay:
    herd = prepared.herd
    reset_peaks(herd.device)
    speed = measure_rate(herd, plan, seconds)
    note = plan.describe(herd.num_members) if plan.name != "loop" and plan.chunk < herd.num_members else ""
    return MeasuredWay(speed, *peaks(herd.device), plan.name, plan.threads, note)
