"""How long a run is where a time says it, and how long it becomes where it is gone on with."""

from __future__ import annotations

import time

from ganherd.herd.engine.engines import Plan, rate
from ganherd.recipe.schema import Recipe
from ganherd.runs import checkpoint
from ganherd.training import finish
from ganherd.training.budget import Budget, plan_budget
from ganherd.training.health.convergence import is_retrained
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError


def measure(assembly: PreparedHerd, plan: Plan, whole: bool = False) -> tuple[float, float]:
    """(steps per second, seconds that the checkpoint and the mixture will take; 0 where these are not counted).

    All ranks measure at the same time, as they will train; the slowest one counts.
    """
    steps = rate(assembly.herd, plan, 2.0) / assembly.herd.size
    began = time.perf_counter()
    if not whole:
        finish.exports(assembly)
    last = 0.0 if whole else 1.0 + 2.0 * (time.perf_counter() - began)
    found = assembly.ranks.all_gather_json([steps, last])
    return min(steps for steps, _ in found), max(last for _, last in found)


def extended(assembly: PreparedHerd, plan: Plan, wanted: Recipe, resumed: checkpoint.Checkpoint | None) -> Budget:
    budget = plan_budget(wanted.train.budget, assembly.steps_per_epoch, lambda: measure(assembly, plan))
    step, seconds = (resumed.step, float(resumed.facts["seconds"])) if resumed else (0, 0.0)
    if resumed and is_retrained(resumed.state, step):
        raise UserError(
            "a class is being trained anew, for as long as was said then: leave --budget out until it is done."
        )
    if budget.deadline is not None:  # a time counts from the start of the run, not from the resume
        per_second = budget.steps / budget.deadline
        budget.steps = step + max(0, int((budget.deadline - seconds) * per_second))
    if budget.steps < step:
        raise UserError(
            f"the run has done {step:,} steps already, more than the {budget.steps:,} of train.budget={wanted.train.budget}: "
            "give a longer one to go on, or begin anew with another --run."
        )
    return budget
