"""How often the members are looked at: so many steps apart, measured once, recorded, and never a matter of the clock again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ganherd.run.loop import Trainer

SHARE = 0.02  # of the time, at most
_AIM = 0.75 * SHARE  # leaves room for a measurement that was too kind
_ENOUGH = 0.25  # seconds of training that a measurement needs


@dataclass
class Cadence:
    """Looks at the multiples of `every` from the step `first` on; `every` 0: none, None: not yet measured."""

    every: int | None
    first: int = 0

    @classmethod
    def of(cls, setting: int | str, recorded: dict[str, Any] | None = None) -> Cadence:
        """As the recipe says, or as an earlier process of the run found."""
        if recorded is not None:
            every, first = recorded["every"], recorded["first"]
            if not (isinstance(every, int | None) and type(first) is int and (every or 0) >= 0 and first >= 0):
                raise ValueError(recorded)
            return cls(every, first)
        return cls(setting if isinstance(setting, int) else None)

    def is_due(self, step: int) -> bool:
        return bool(self.every) and step >= self.first and step % (self.every or 1) == 0

    def next_after(self, step: int) -> list[int]:
        """The step of the next look, if there is one.

        >>> Cadence(50).next_after(100), Cadence(50, 300).next_after(100), Cadence(0).next_after(100)
        ([150], [300], [])
        """
        if not self.every:
            return []
        return [max(step // self.every + 1, -(-self.first // self.every)) * self.every]


def choose(cost: float, step: float, records: int) -> int:
    """Steps between looks, a multiple of those between records: seconds of a look, of a step.

    >>> choose(0.007, 0.01, 50), choose(0.1, 0.01, 50)
    (50, 700)
    """
    return max(1, math.ceil(cost / (_AIM * step) / records)) * records


def find(trainer: Trainer, start: int, began: float) -> None:
    """Chooses, once, how often a run's members are looked at, when it has trained for long enough; called by all ranks.

    The last stretch of training was from the step `start` on, since `began`.
    """
    if trainer.herd.device.type == "cuda":
        torch.cuda.synchronize(trainer.herd.device)
    trainer.stopwatch.add(trainer.step - start, time.monotonic() - began)
    if (step := trainer.ranks.decided(trainer.stopwatch.step)) is not None:
        every = trainer.ranks.decided(choose(trainer.watch.cost(), step, trainer.settings.record_every))
        trainer.cadence = Cadence(every, trainer.step)
        if trainer.ranks.is_first:
            # before the first look: a resume makes the same ones
            trainer.folder.write_info(watch=vars(trainer.cadence))


class Stopwatch:
    """Times the training between stops; the first stretch, in which things are compiled and captured, does not count."""

    def __init__(self) -> None:
        self._steps, self._seconds, self._warm = 0, 0.0, False

    def add(self, steps: int, seconds: float) -> None:
        if self._warm:
            self._steps += steps
            self._seconds += seconds
        self._warm = True

    @property
    def step(self) -> float | None:
        """Seconds of a step, once enough of them were timed."""
        return self._seconds / self._steps if self._steps and self._seconds >= _ENOUGH else None
