"""The length of a run: steps, epochs, or a time from the start of the command to the saved mixture.

A time is turned into a number of steps once, which is recorded: what depends on the length of the run is planned for it. The
training itself ends by the clock, early enough for the mixture to be saved in time. That step is recorded, too.
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
_LONG_ENOUGH_TO_NOTE = 110.0  # seconds of training; shorter times are used to try something
ENOUGH = 2000  # steps after which small nets have learned something
_SECONDS = 0.5  # for measuring the rate


class Budget:
    """A number of steps and, for a time budget, the second of training by which the mixture has to be saved."""

    def __init__(self, steps: int, deadline: float | None = None, closing: ClosingTime | None = None) -> None:
        """Describe a budget.

        Args:
            steps: The last step; for a time budget, the step that the run is expected to reach.
            deadline: Seconds of training, over all processes of the run.
            closing: What follows the last step, before the deadline. None: training alone may take all of the time.
        """
        self.steps, self.deadline, self.closing = steps, deadline, closing
        self.shortage = ""  # why a time leaves no room for training

    @property
    def limit(self) -> float | None:
        """The second after which no further step is trained; None if only the steps count."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - (self.closing.seconds if self.closing else 0.0))

    def is_over(self, seconds: float) -> bool:
        return (limit := self.limit) is not None and seconds >= limit

    def end_at(self, step: int) -> None:
        """End the run at `step`, now that its time is used up: from now on the clock no longer matters."""
        self.steps, self.deadline = step, None

    def timing(self, what: str) -> AbstractContextManager[None]:
        """Return a context that notes how long something takes that also follows the last step."""
        return self.closing.timing(what) if self.closing else nullcontext()

    def record(self) -> JsonObject:
        """Return what run.json records."""
        alone = {"training_only": True} if self.deadline is not None and self.closing is None else {}
        return {"steps": self.steps, "deadline": self.deadline, **alone}


@dataclass(frozen=True)
class Timing:
    """What turns a time into steps."""

    rate: float  # steps per second
    start: float = 0.0  # seconds from the start of the command to the first step
    closing: ClosingTime | None = None  # what follows the last step; None: the time is for training alone

    @property
    def overhead(self) -> float:
        """The seconds of the start and of the end."""
        return self.start + (self.closing.seconds if self.closing else 0.0)


@dataclass(frozen=True)
class SecondPhase:
    """What follows a first phase within the same time budget. The first phase leaves room for its start and its end."""

    share: float  # of the first phase in the training time of both
    closing: float  # seconds from its last step to its mixture
    start: float | None  # seconds of its start, as recorded; None: as long as that of the first phase
    imports: float  # seconds of the command before the first phase was started; the second one does without

    def overhead(self, first: Timing) -> float:
        """Return the seconds of the start and of the end of the second phase."""
        return self.closing + (max(0.0, first.start - self.imports) if self.start is None else self.start)

    def extra_time(self, first: Timing) -> float:
        """Return the seconds by which the first phase ends later than at its share of the budget; negative: earlier.

        Then both phases have their shares of the time that is left for training.

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
        measure: Called for times only.
        second: The phase that follows, if there is one.
        before: Seconds of the command's budget that belong to an earlier phase.

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
    """Return a note if a time leaves no room for training, or if a time or epochs are too few steps to learn from.

    Times below two minutes get no note about few steps, because they are used to try something.

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
    """Measure what turns a time into steps. All ranks measure at the same time, because they also train so; the slowest counts.

    Args:
        began: When the command was started, on the clock of `time.monotonic`; the first rank's counts. None: the time is for
            training alone.
        has_mixture: Whether the run ends with a mixture.
        report: Gets the progress if kernels are compiled.
    """
    rate = measure_rate(prepared.herd, plan, _SECONDS, report=report) / prepared.herd.num_members
    closing = None if began is None else measure_closing(prepared, has_mixture)
    start = 0.0 if began is None else time.monotonic() - began
    each = prepared.ranks.all_gather_json([rate, start])
    return Timing(min(rate for rate, _ in each), each[0][1], closing)


def measure_closing(prepared: PreparedHerd, has_mixture: bool = True) -> ClosingTime:
    """Estimate the end of a run on all ranks at the same time; the slowest counts."""
    closing = estimate_closing(prepared, has_mixture)
    closing.mixture = max(prepared.ranks.all_gather_json(closing.mixture))
    return closing


def extend_budget(
    prepared: PreparedHerd, plan: Plan, wanted: Recipe, resumed: checkpoint.Checkpoint | None, began: float
) -> Budget:
    """Return the new budget of a run that is resumed with another one.

    Args:
        began: When the command was started, on the clock of `time.monotonic`.

    Raises:
        UserError: The run has made more steps already, or one of its classes is being trained again.
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
