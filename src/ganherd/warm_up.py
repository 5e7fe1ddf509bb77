"""Compile and measure what a recipe needs on this machine, so that its runs start at once: `ganherd doctor --warm RECIPE`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ganherd.herd.engine import autotune
from ganherd.herd.engine.engine_trials import trial_engine, tune_kernels
from ganherd.herd.engine.engines import CompileReport, has_kernels
from ganherd.recipe.schema import Recipe
from ganherd.training.setup import preflight
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import counted
from ganherd.util.host import torch_threads
from ganherd.util.paths import cache_home
from ganherd.util.text import duration


@dataclass
class WarmUp:
    """What was done to warm up a recipe."""

    engine: str
    kernels: int  # compiled now
    measured: int  # kernels whose tile shapes were measured now
    seconds: float
    cache: str  # the folder that has the results

    def describe(self) -> str:
        """Return the result as a sentence."""
        work = [f"{counted(self.kernels, 'kernels')} compiled", f"{counted(self.measured, 'kernels')} measured"]
        return f"Warm in {duration(self.seconds)}: {', '.join(work)}, {self.engine}; the results are in {self.cache}."


def warm(recipe: Recipe, log: Callable[[str], None], report: CompileReport) -> WarmUp:
    """Compare the nets with plain PyTorch, choose the engine, compile the kernels of a step and measure the heavy ones.

    Args:
        report: Gets the progress of the compilation.
    """
    began, kernels = time.monotonic(), 0

    def count(done: int, total: int) -> None:
        nonlocal kernels
        kernels += 1 if done else 0
        report(done, total)

    prepared = assemble(recipe, trust_code=True)
    preflight.check_nets(prepared, log)
    herd, measured = prepared.herd, 0
    plan = autotune.choose(herd, recipe.engine, log, count)
    if has_kernels(herd) and not plan.one_by_one:
        measured = tune_kernels(herd, plan, count)
    with torch_threads(plan.threads):
        trial_engine(herd, plan).prepare(count)
    engine = plan.describe(herd.num_members)
    return WarmUp(engine, kernels, measured, time.monotonic() - began, str(cache_home()))
