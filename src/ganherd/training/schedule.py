"""When the loop stops, and what is due at a stop: the recipe fixes this in steps, and it never depends on the clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ganherd.training.health.convergence import FOREVER
from ganherd.training.health.look_interval import LookInterval

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer

_INTERVALS = ("record_every", "sample_every", "checkpoint_every", "buddy_every")
_CLOCK_CHECKS = 50  # a run with a time budget stops at least this often to compare it with the clock


class Schedule:
    """Decide what is due at a step, which step the loop trains to next, and which one is the last."""

    def __init__(self, trainer: Trainer, looks: LookInterval) -> None:
        """Take the intervals of records, pictures and checkpoints from the recipe.

        If the strategy lets ranks run some steps without synchronising, all intervals are rounded up to multiples of
        that number.
        """
        settings = trainer.prepared.recipe.run
        if apart := trainer.strategy.max_unsynced_steps:
            every = {name: rounded(getattr(settings, name), apart) for name in _INTERVALS}
            settings, looks = settings.model_copy(update=every), replace(looks, every=rounded(looks.every, apart))
        self.settings, self.looks, self._trainer = settings, looks, trainer

    def records_at(self, step: int) -> bool:
        """Return whether a record is due."""
        return is_due(step, self.settings.record_every)

    def draws_at(self, step: int) -> bool:
        """Return whether a picture of samples is due."""
        return is_due(step, self.settings.sample_every)

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due."""
        return is_due(step, self.settings.checkpoint_every)

    def looks_at(self, step: int) -> bool:
        """Return whether a look at the members (a check of their health) is due."""
        return self.looks.is_due(step)

    def next_stop(self, step: int, intervals: Iterable[int]) -> int:
        """Return the next step at which anything but training happens.

        Args:
            intervals: Numbers of steps between stops that callbacks need; 0: none.
        """
        settings = self.settings
        each = (settings.record_every, settings.sample_every, settings.checkpoint_every, *intervals)
        stops = [step - step % every + every for every in each if every]
        meeting = self._trainer.strategy.next_after(step)
        stops += [meeting] if meeting is not None else []
        if self._trainer.budget.deadline is not None:
            every = rounded(max(1, self._trainer.budget.steps // _CLOCK_CHECKS), self._trainer.herd.rules.period)
            stops.append(step - step % every + every)
        return min([self.last, *stops, *self._trainer.sync.next_after(step), *self.looks.next_after(step)])

    @property
    def last(self) -> int:
        """The last step of the run, as far as it is known now.

        While the clock decides, this is a step that is never reached (`FOREVER`). It is less if no member is trained
        any more.
        """
        budget = self._trainer.budget
        return self._trainer.state.convergence.last_step(budget.steps if budget.deadline is None else FOREVER)


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every `every` steps happens at `step`; if `every` is 0, it never does.

    >>> is_due(100, 50), is_due(120, 50), is_due(100, 0)
    (True, False, False)
    """
    return every > 0 and step % every == 0


def rounded(every: int, apart: int) -> int:
    """Return an interval of `every` steps, rounded up to a multiple of `apart`; 0 (never) stays 0.

    >>> rounded(50, 600), rounded(600, 600), rounded(700, 600), rounded(0, 600)
    (600, 600, 1200, 0)
    """
    return -(-every // apart) * apart
