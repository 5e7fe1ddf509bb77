"""Stop training members that have converged, so that the device works on the others.

A member's metric is averaged over windows of `patience` steps. If a window is hardly better than the one before, the member is
not trained any more from the next record on. Both metrics cost nothing extra: they come from looks and records.

- differs: how well nearest neighbours separate its samples from its data; 0.5 if they cannot (from looks, `run.watch`).
- gap: the difference between the mean logits of real and generated images (from records); for a Wasserstein loss this
  estimates the distance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State
from ganherd.recipe.schema import StopConfig
from ganherd.training.health.monitor import recall

FOREVER = 2**62  # steps


@dataclass(frozen=True)
class Converged:
    """A member that has converged, with its metric over the last window and over the one before."""

    member: int
    before: float
    now: float


def is_retrained(state: State, step: int) -> bool:
    """Return whether members wait, beyond this step, for others that are retrained."""
    until = state.get("rest.until", torch.tensor([FOREVER]))
    return bool(((until < FOREVER) & (until > step)).any())


class Convergence:
    """Track each member's metric over windows and mark those that stopped improving. Its state is saved with checkpoints."""

    def __init__(
        self,
        settings: StopConfig | None,
        size: int,
        remembered: State | None = None,
        frozen: Sequence[int] | None = None,
    ) -> None:
        """Create the state, or restore it from what a checkpoint `remembered`.

        Args:
            frozen: Members that are never trained in this run. None: members rest only if `settings` ask for it.
        """
        self.settings = settings if settings is not None and settings.patience else None
        self.state: State = {}
        if (
            self.settings is not None
            or frozen is not None
            or any(name.startswith("rest.") for name in remembered or {})
        ):
            self.state = {
                "rest.at": torch.full((size,), -1),  # the step from which it rests; -1: it trains
                "rest.until": torch.full((size,), FOREVER),  # … and to which, while others are retrained
                "rest.since": torch.zeros(size, dtype=torch.int64),  # the step at which its window began
                "rest.sum": torch.zeros(size, dtype=torch.float64),
                "rest.seen": torch.zeros(size, dtype=torch.int64),
                "rest.before": torch.full((size,), torch.inf, dtype=torch.float64),  # mean of the window before
            }
            self.state["rest.at"][list(frozen or ())] = 0
        recall(self.state, remembered)

    @property
    def frozen_members(self) -> list[int]:
        """The members that are never trained in this run."""
        return torch.nonzero(self.state["rest.at"] == 0)[:, 0].tolist() if self.state else []

    def wait(self, members: Collection[int], step: int, until: int) -> None:
        """Let members rest while others are retrained; those that rest already continue to."""
        for member in members:
            if self.state["rest.at"][member] < 0:
                self.state["rest.at"][member], self.state["rest.until"][member] = step, until

    def wake(self, step: int) -> None:
        """Let members whose rest ends by this step train again."""
        if self.state:
            over = self.state["rest.until"] <= step
            self.state["rest.at"][over] = -1
            self.state["rest.until"][over] = FOREVER

    @property
    def awake(self) -> list[int] | None:
        """The members that train; None: all do."""
        if not self.state or bool((self.state["rest.at"] < 0).all()):
            return None
        return torch.nonzero(self.state["rest.at"] < 0)[:, 0].tolist()

    def trains(self, size: int) -> Tensor:
        """Return bool [N]: whether each member is trained."""
        return self.state["rest.at"] < 0 if self.state else torch.ones(size, dtype=torch.bool)

    def own_steps(self, steps: list[int]) -> list[int]:
        """Return [N] the steps that each member has made, given the steps that it would have made without resting."""
        if not self.state:
            return steps
        return [
            step if at < 0 else min(step, at) for step, at in zip(steps, self.state["rest.at"].tolist(), strict=True)
        ]

    def note(self, metric: str, values: Tensor) -> None:
        """Add the values [N] of a look or of a record; values that are not finite are left out."""
        if self.settings is None or metric != self.settings.metric:
            return
        values = values.detach().double().cpu()
        known = torch.isfinite(values) & (self.state["rest.at"] < 0)
        self.state["rest.sum"] += torch.where(known, values, 0.0)
        self.state["rest.seen"] += known

    def judge(self, step: int, well: Tensor) -> list[Converged]:
        """End the windows that are long enough, and return the members that converged. Only members that are `well` [N] can."""
        if self.settings is None:
            return []
        state, converged = self.state, []
        ends = (
            (state["rest.at"] < 0) & (step - state["rest.since"] >= self.settings.patience) & (state["rest.seen"] > 0)
        )
        for member in torch.nonzero(ends)[:, 0].tolist():
            before = float(state["rest.before"][member])
            now = float(state["rest.sum"][member] / state["rest.seen"][member])
            if math.isfinite(before) and now > before * (1.0 - self.settings.least) and bool(well[member]):
                state["rest.at"][member] = step
                converged.append(Converged(member, before, now))
            else:
                self._begin(member, step, now)
        return converged

    def forget(self, member: int, step: int) -> None:
        """Forget a member's windows, for example after a repair, and let it train."""
        if self.state:
            self.state["rest.at"][member] = -1
            self.state["rest.until"][member] = FOREVER
            self._begin(member, step, math.inf)

    def last(self, planned: int, is_time: bool) -> int:
        """Return the last step of a run that was planned for `planned` steps; if all members rest, that of the last one.

        If a time was planned, the members that train share the time of the others: members × steps stays the same.
        """
        if not self.state:
            return planned
        at, until = self.state["rest.at"], self.state["rest.until"]
        waits = until < FOREVER
        if bool(waits.any()):  # Others are retrained, and their budget decides.
            return int(until[waits].max()) if bool((at < 0).any()) else int(at[~waits].max())
        resting = at >= 0
        awake = len(at) - int(resting.sum())
        if not awake:
            return int(at.max())
        return (planned * len(at) - int(at[resting].sum())) // awake if is_time else planned

    def _begin(self, member: int, step: int, before: float) -> None:
        for name, value in (("since", step), ("sum", 0.0), ("seen", 0), ("before", before)):
            self.state[f"rest.{name}"][member] = value
