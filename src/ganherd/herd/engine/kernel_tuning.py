"""Measure the fastest tile shapes of a herd's heavy kernels, for later runs on the same kind of GPU."""

from __future__ import annotations

from dataclasses import replace

from ganherd.herd.engine.engines import CompileReport, Plan, StackedHerd, collecting, no_report, trial_engine
from ganherd.herd.lowering.kernels import tiles


def tune(herd: StackedHerd, plan: Plan, report: CompileReport = no_report) -> int:
    """Measure the kernels of a step that no table has, on a copy of the state, and return their number.

    The results go to the user's table in the cache (`tiles`). Runs that are being trained keep their shapes.
    """

    def train_copy() -> None:
        engine = trial_engine(herd, replace(plan, name="fused"))
        engine.advance(0, herd.rules.skip_d + 1, engine.herd.zero_sums())

    with tiles.listing() as unmeasured, collecting(report):
        train_copy()
    if unmeasured:
        with tiles.measuring():
            train_copy()
    return len(unmeasured)
