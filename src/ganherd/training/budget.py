"""The length of a run: steps, epochs, or a time from the start of the command to the saved mixture.

A time budget is converted to an expected number of steps once, before the first step. This number is recorded, and
everything that depends on the length of the run (e.g. learning-rate schedules) is planned for it. The training itself
ends by the clock, early enough that the mixture is saved in time. The step at which it ended is recorded, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ganherd.herd.engine.engine_trials import measure_rate
from ganherd.herd.engine.engines import CompileReport, Plan, no_report
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs import checkpoint
from ganherd.training.closing_time import ClosingTime, estimate_closing
from ganherd.training.health.convergence import is_retrained
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import duration

FEW = 200  # steps after which a GAN has hardly begun to learn
_PROBABLY_FEW = 500  # steps that seldom suffice for good samples
_LONG_ENOUGH_TO_NOTE = 110.0  # seconds of training; with less, users only try something and get no note
ENOUGH = 2000  # steps after which small nets have learned something
_SECONDS = 0.5  # duration of the training that measures the steps per second


class Budget:
    """The length of a run in steps and, for a time budget, the seconds of training until its mixture must be saved."""

    def __init__(self, steps: int, deadline: float | None = None, closing: ClosingTime | None = None) -> None:
        """Describe a budget.

        Args:
            steps: The last step; for a time budget, the step that the run is expected to reach.
            deadline: Seconds of training, over all processes of the run, by which the run has to end. None: no time
                budget.
            closing: Estimates the time between the last step and the deadline, in which the mixture is made. None:
                training alone may take all of the time.
        """
        self.steps, self.deadline, self.closing = steps, deadline, closing
        self.shortage = ""  # a note for the user if a time budget leaves no time for training, otherwise empty

    @property
    def limit(self) -> float | None:
        """The seconds of training after which no further step is trained; None if only the steps count."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - (self.closing.seconds if self.closing else 0.0))

    def is_over(self, seconds: float) -> bool:
        """Return whether a time budget is used up after this many seconds of training; False if only steps count."""
        return (limit := self.limit) is not None and seconds >= limit

    def end_at(self, step: int) -> None:
        """End the run at `step`, now that its time is used up: from now on the clock no longer matters."""
        self.steps, self.deadline = step, None

    def timing(self, what: str) -> AbstractContextManager[None]:
        """Return a context manager that measures its block, to estimate the same work after the last step.

        Args:
            what: The name of the work, such as "checkpoint".
        """
        return self.closing.timing(what) if self.closing else nullcontext()

    def record(self) -> JsonObject:
        """Return the budget as run.json records it."""
        alone = {"training_only": True} if self.deadline is not None and self.closing is None else {}
        return {"steps": self.steps, "deadline": self.deadline, **alone}


@dataclass(frozen=True)
class Timing:
    """Measurements from which a time budget is converted to a number of steps."""

    rate: float  # steps per second
    start: float = 0.0  # seconds from the start of the command to the first step
    closing: ClosingTime | None = None  # what follows the last step; None: the time is for training alone

    @property
    def overhead(self) -> float:
        """The seconds that a run takes in addition to its training: before the first step and after the last one."""
        return self.start + (self.closing.seconds if self.closing else 0.0)


@dataclass(frozen=True)
class SecondPhase:
    """Estimated times of the second phase of a two-phase run.

    Both phases share one time budget, so the first needs them.
    """

    share: float  # of the training time of both phases, the part that the first phase gets
    closing: float  # seconds from the last step of the second phase to its mixture
    start: float | None  # seconds from its start to its first step, from an earlier run; None: as in the first phase
    imports: float  # seconds of the command before the first phase was started; the second phase does not repeat them

    def overhead(self, first: Timing) -> float:
        """Return the seconds that the second phase takes before its first and after its last step.

        Args:
            first: The first phase.
        """
        return self.closing + (max(0.0, first.start - self.imports) if self.start is None else self.start)

    def extra_time(self, first: Timing) -> float:
        """Return the seconds by which the first phase ends later than at its share of the budget; negative: earlier.

        With this shift each phase gets its share of the training time, which is the budget without the overheads of
        both phases.

        >>> SecondPhase(0.75, closing=6.0, start=4.0, imports=0.0).extra_time(Timing(1.0, start=2.0))
        -7.0
        """
        return (1 - self.share) * first.overhead - self.share * self.overhead(first)


def plan_budget(
    text: str,
    steps_per_epoch: float,
    measure: Callable[[], Timing],
    second: SecondPhase | None = None,
    before: float = 0.0,
) -> Budget:
    """Return the budget for a recipe's `train.budget`, such as `3epochs`.

    Args:
        steps_per_epoch: The number of steps, possibly fractional, of one pass over the data.
        measure: Returns the rate and the overheads of the run; only called for a time budget.
        second: The phase that follows, if there is one.
        before: Seconds of the command's budget that belong to an earlier phase; only used in the note about a short
            budget.

    >>> plan_budget("3epochs", 2.5, lambda: Timing(0.0)).steps
    8
    >>> plan_budget("10s", 2.5, lambda: Timing(100.0, start=2.0)).steps
    800
    """
    unit, amount = parse_budget(text)
    if unit == "steps":
        return Budget(int(amount))
    if unit == "epochs":
        return Budget(max(1, math.ceil(amount * steps_per_epoch - 1e-9)))
    timing = measure()
    budget = Budget(1, amount - timing.start + (second.extra_time(timing) if second else 0.0), timing.closing)
    budget.steps = max(1, int((budget.limit or 0.0) * timing.rate))
    if not budget.limit:
        overhead = before + timing.overhead + (second.overhead(timing) if second else 0.0)
        whole = before + (amount / second.share if second else amount)
        budget.shortage = (
            f"a budget of {duration(whole)} is too short: all but the training takes about {duration(overhead)} here, so only "
            f"one step is trained; give it --budget {10 * math.ceil(overhead / 5)}s or more"
        )
    return budget


def too_short(text: str, budget: Budget) -> list[str]:
    """Return a list with one note if a budget is too short, and an empty list otherwise.

    A time is too short if it leaves no time for training; a time or a number of epochs is too short if it is too few
    steps to learn from. Times below two minutes get no note about few steps, because users only try something with
    them.

    Args:
        text: The budget as the recipe has it.
        budget: The same budget, planned.

    >>> too_short("50epochs", Budget(25))
    ['50epochs of this data are 25 steps, too few to learn from: give it --budget 2000steps']
    >>> too_short("25steps", Budget(25)), too_short("50epochs", Budget(3400)), too_short("9s", Budget(70, 6.0))
    ([], [], [])
    >>> too_short("10m", Budget(240, 600.0))[0].partition(":")[0]
    '10m is about 240 steps on this machine, probably too few'
    """
    if budget.shortage:
        return [budget.shortage]
    if budget.deadline is not None and budget.deadline >= _LONG_ENOUGH_TO_NOTE and 0 < budget.steps < _PROBABLY_FEW:
        longer = duration(budget.deadline / budget.steps * ENOUGH)
        return [
            f"{text} is about {budget.steps:,} steps on this machine, probably too few: use smaller images (data.size) or nets, "
            f"or allow about {longer} for {ENOUGH:,} steps"
        ]
    if parse_budget(text)[0] != "epochs" or budget.steps >= FEW:
        return []
    return [f"{text} of this data are {budget.steps:,} steps, too few to learn from: give it --budget {ENOUGH}steps"]


def measure(
    prepared: PreparedHerd,
    plan: Plan,
    began: float | None,
    has_mixture: bool = True,
    report: CompileReport = no_report,
) -> Timing:
    """Measure the steps per second of the run, and the time that it takes in addition to its training.

    All ranks measure at the same time, because they also train at the same time; the rate of the slowest rank counts.

    Args:
        began: When the command was started, on the clock of `time.monotonic`; the value of the first rank counts. None:
            the whole time budget is for training alone.
        has_mixture: Whether the run ends with a mixture.
        report: Called with the progress if kernels are compiled.
    """
    rate = measure_rate(prepared.herd, plan, _SECONDS, report=report) / prepared.herd.num_members
    closing = None if began is None else measure_closing(prepared, has_mixture)
    start = 0.0 if began is None else time.monotonic() - began
    each = prepared.ranks.all_gather_json([rate, start])
    return Timing(min(rate for rate, _ in each), each[0][1], closing)


def measure_closing(prepared: PreparedHerd, has_mixture: bool = True) -> ClosingTime:
    """Estimate how long a run takes after its last step.

    All ranks call this at the same time, and the slowest counts.
    """
    closing = estimate_closing(prepared, has_mixture)
    closing.mixture = max(prepared.ranks.all_gather_json(closing.mixture))
    return closing


def extend_budget(
    prepared: PreparedHerd, plan: Plan, wanted: Recipe, resumed: checkpoint.Checkpoint | None, began: float
) -> Budget:
    """Return the budget of a run that is resumed with a new `train.budget`.

    Args:
        wanted: The recipe with the new budget.
        resumed: The checkpoint that the run continues from; None: it starts at step 0.
        began: When the command was started, on the clock of `time.monotonic`.

    Raises:
        UserError: The run has already made more steps than the new budget, or one of its classes is being retrained.
    """
    budget = plan_budget(wanted.train.budget, prepared.steps_per_epoch, lambda: measure(prepared, plan, began))
    step, seconds = (resumed.step, resumed.meta.seconds) if resumed else (0, 0.0)
    if resumed and is_retrained(resumed.state, step):
        raise UserError(
            "A class is being trained again, for the length given then. Leave --budget out until it is done."
        )
    if budget.limit is not None:  # a time counts from the start of the run, not from the resume
        left = budget.limit - seconds
        if left <= 0:
            budget.end_at(step)
        else:
            budget.steps = step + int(budget.steps * left / budget.limit)
    if budget.steps < step:
        raise UserError(
            f"the run has done {step:,} steps already, more than the {budget.steps:,} of train.budget={wanted.train.budget}: "
            "give a longer one to continue, or start a new run with another --run."
        )
    return budget
