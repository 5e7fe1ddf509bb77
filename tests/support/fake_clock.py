"""A clock for tests of time budgets: it moves only by the seconds that each part of a run is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ganherd.mixture.mixture import Mixture
from ganherd.mixture.recalibration import NOISES
from ganherd.runs import checkpoint
from ganherd.training import budget, closing_time, finish, loop, session
from ganherd.training.setup import preflight


@dataclass
class FakeClock:
    """The time, and the seconds that each part of a run takes."""

    now: float = 1000.0
    start: float = 0.0  # of every run, up to the choice of its engine
    step: float = 0.1
    checkpoint: float = 0.0
    mixture: float = 0.0  # of one member
    saved_at: float = 0.0  # when the last mixture was saved

    def monotonic(self) -> float:
        return self.now

    def install(self, patch: pytest.MonkeyPatch, measured_step: float | None = None) -> None:
        """Let runs use this clock. `measured_step`: the seconds of a step that are measured before the training."""
        for module in (budget, closing_time, loop, session):
            patch.setattr(module, "time", self)
        slow = (
            (loop.Trainer, "tick", lambda *_: self.step),
            (preflight, "check_nets", lambda *_: self.start),
            (checkpoint, "save", lambda *_: self.checkpoint),
            (finish, "recalibrated", lambda *words: self.mixture * (words[5] if len(words) > 5 else NOISES) / NOISES),
        )
        for owner, name, seconds in slow:
            patch.setattr(owner, name, self._slower(getattr(owner, name), seconds))
        save = Mixture.save

        def note_and_save(mixture: Mixture, *words: Any) -> None:
            save(mixture, *words)
            self.saved_at = self.now

        patch.setattr(Mixture, "save", note_and_save)
        rate = 1 / (self.step if measured_step is None else measured_step)
        patch.setattr(budget, "measure_rate", lambda herd, *_, **named: rate * herd.num_members)

    def _slower(self, function: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def slower(*words: Any, **named: Any) -> Any:
            self.now += seconds(*words)
            return function(*words, **named)

        return slower
