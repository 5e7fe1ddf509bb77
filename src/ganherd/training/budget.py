"""How long a run is: steps, epochs, or a time that is turned into steps once, recorded, and kept."""

from __future__ import annotations

import math
from collections.abc import Callable

from ganherd.recipe.schema import parse_budget

FEW = 200  # steps with which a GAN has hardly begun to learn
ENOUGH = 2000  # steps with which small nets show something


class Budget:
    """A number of steps and, for a time budget, the second by which training has to end."""

    def __init__(self, steps: int, deadline: float | None = None) -> None:
        self.steps, self.deadline = steps, deadline

    def is_over(self, seconds: float) -> bool:
        return self.deadline is not None and seconds >= self.deadline

    def end_at(self, step: int) -> None:
        """The time is over: from now on it is a number of steps, and the clock has no say any more."""
        self.steps, self.deadline = step, None


def plan_budget(text: str, steps_per_epoch: float, measure: Callable[[], tuple[float, float]]) -> Budget:
    """`measure` answers (steps per second, seconds to keep for the checkpoint and the mixture); it is called for times only.

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
    """A sentence where epochs of little data are hardly any steps; who asks for few steps gets them.

    >>> too_short("50epochs", 25)
    ['50epochs of this data are 25 steps, too few to learn from: give it --budget 2000steps']
    >>> too_short("25steps", 25), too_short("50epochs", 3400)
    ([], [])
    """
    if parse_budget(text)[0] != "epochs" or steps >= FEW:
        return []
    return [f"{text} of this data are {steps:,} steps, too few to learn from: give it --budget {ENOUGH}steps"]
