"""The length of a run: steps, epochs, or a time that is turned into steps once and recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ganherd.herd.engine.engines import Plan, measure_rate
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs import checkpoint
from ganherd.training import finish
from ganherd.training.health.convergence import is_retrained
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError

FEW = 200  # steps after which a GAN has hardly begun to learn
ENOUGH = 2000  # steps after which small nets have learned something


class Budget:
    """A number of steps and, for a time budget, the second by which training has to end."""

    def __init__(self, steps: int, deadline: float | None = None) -> None:
        self.steps, self.deadline = steps, deadline

    def is_over(self, seconds: float) -> bool:
        return self.deadline is not None and seconds >= self.deadline

    def end_at(self, step: int) -> None:
        """End the run at `step`, now that its time is used up: from now on the clock no longer matters."""
        self.steps, self.deadline = step, None


def plan_budget(text: str, steps_per_epoch: float, measure: Callable[[], tuple[float, float]]) -> Budget:
    """Return the budget for a recipe's `train.budget`, such as `3epochs`.

    Args:
        measure: Returns (steps per second, seconds to reserve for the checkpoint and the mixture); called for times only.

    >>> plan_budget("3epochs", 2.5, lambda: (0.0, 0.0)).steps
    8
    >>> plan_budget("10s", 2.5, lambda: (100.0, 2.0)).steps
    784
    """
    unit, amount = parse_budget(text)
    if unit == "steps":
        return Budget(int(amount))
    if unit == "epochs":
        return Budget(max(1, math.ceil(amount * steps_per_epoch - 1e-9)))
    rate, reserve = measure()
    deadline = max(amount - reserve, 0.1 * amount)
    return Budget(max(1, int(0.98 * deadline * rate)), deadline)


def too_short(text: str, steps: int) -> list[str]:
    """Return a note if a budget in epochs is too few steps to learn from, because there is little data.

    >>> too_short("50epochs", 25)
    ['50epochs of this data are 25 steps, too few to learn from: give it --budget 2000steps']
    >>> too_short("25steps", 25), too_short("50epochs", 3400)
    ([], [])
    """
    if parse_budget(text)[0] != "epochs" or steps >= FEW:
        return []
    return [f"{text} of this data are {steps:,} steps, too few to learn from: give it --budget {ENOUGH}steps"]


def measure(prepared: PreparedHerd, plan: Plan, counts_all: bool = False) -> tuple[float, float]:
    """Return the steps per second, and the seconds to reserve for the checkpoint and the mixture.

    All ranks measure at the same time, because they also train so; the slowest counts.

    Args:
        counts_all: The whole budget is for the training, so nothing is reserved.
    """
    steps = measure_rate(prepared.herd, plan, 2.0) / prepared.herd.num_members
    began = time.perf_counter()
    if not counts_all:
        finish.exports(prepared)
    reserve = 0.0 if counts_all else 1.0 + 2.0 * (time.perf_counter() - began)
    each = prepared.ranks.all_gather_json([steps, reserve])
    return min(steps for steps, _ in each), max(reserve for _, reserve in each)


def extend_budget(prepared: PreparedHerd, plan: Plan, wanted: Recipe, resumed: checkpoint.Checkpoint | None) -> Budget:
    """Return the new budget of a run that is resumed with another one.

    Raises:
        UserError: The run has made more steps already, or one of its classes is being trained again.
    """
    budget = plan_budget(wanted.train.budget, prepared.steps_per_epoch, lambda: measure(prepared, plan))
    step, seconds = (resumed.step, resumed.meta.seconds) if resumed else (0, 0.0)
    if resumed and is_retrained(resumed.state, step):
        raise UserError(
            "A class is being trained again, for the length given then. Leave --budget out until it is done."
        )
    if budget.deadline is not None:  # a time counts from the start of the run, not from the resume
        per_second = budget.steps / budget.deadline
        budget.steps = step + max(0, int((budget.deadline - seconds) * per_second))
    if budget.steps < step:
        raise UserError(
            f"the run has done {step:,} steps already, more than the {budget.steps:,} of train.budget={wanted.train.budget}: "
            "give a longer one to continue, or start a new run with another --run."
        )
    return budget
