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
from ganherd.recipe.sections.train_config import StopConfig
from ganherd.training.health.monitor import recall

FOREVER = 2**62  # steps


@dataclass(frozen=True)
class Converged:
    """A member that has converged, with its mean metric over the last window and over the one before."""

    member: int
    before: float
    now: float


def is_retrained(state: State, step: int) -> bool:
    """Return whether a run is in a retraining at this step: some members are paused until a later one."""
    until = state.get("rest.until", torch.tensor([FOREVER]))
    return bool(((until < FOREVER) & (until > step)).any())


class Convergence:
    """Track each member's metric over windows, and know which members are trained.

    A member is not trained if it has converged, if it is frozen, or while other members are retrained. The state consists of
    tensors [N], which are saved with every checkpoint.
    """

    def __init__(
        self,
        settings: StopConfig | None,
        size: int,
        remembered: State | None = None,
        frozen: Sequence[int] | None = None,
    ) -> None:
        """Create the state, or restore it from a checkpoint.

        Args:
            size: The number of members of the whole herd.
            remembered: The tensors of the checkpoint.
            frozen: Members that are never trained in this run. None: there is a state only if `settings` or the checkpoint
                has one.
        """
        self.settings = settings if settings is not None and settings.patience else None
        self.state: State = {}
        self._size = size
        is_saved = any(name.startswith("rest.") for name in remembered or {})
        if self.settings is not None or frozen is not None or is_saved:
            self.state = {
                "rest.at": torch.full((size,), -1),  # the step from which it is not trained; -1: it is trained
                "rest.until": torch.full((size,), FOREVER),  # … and the step from which it is trained again
                "rest.since": torch.zeros(size, dtype=torch.int64),  # the step at which its window began
                "rest.sum": torch.zeros(size, dtype=torch.float64),  # of the metric in its window
                "rest.seen": torch.zeros(size, dtype=torch.int64),  # values in that sum
                "rest.before": torch.full((size,), torch.inf, dtype=torch.float64),  # mean of the window before
            }
            self.state["rest.at"][list(frozen or ())] = 0
        recall(self.state, remembered)

    @property
    def frozen_members(self) -> list[int]:
        """The members that are never trained in this run."""
        return torch.nonzero(self.state["rest.at"] == 0)[:, 0].tolist() if self.state else []

    @property
    def is_trained(self) -> Tensor:
        """bool [N], True for members that are trained."""
        return self.state["rest.at"] < 0 if self.state else torch.ones(self._size, dtype=torch.bool)

    @property
    def trained_members(self) -> list[int] | None:
        """The members that are trained; None: all."""
        return None if bool(self.is_trained.all()) else torch.nonzero(self.is_trained)[:, 0].tolist()

    def pause(self, members: Collection[int], step: int, until: int) -> None:
        """Do not train these members from `step` to `until`, while others are retrained; ignore those not trained anyway."""
        for member in members:
            if self.state["rest.at"][member] < 0:
                self.state["rest.at"][member], self.state["rest.until"][member] = step, until

    def stop(self, members: Collection[int], step: int) -> None:
        """Do not train these members any more; ignore those that are not trained anyway."""
        self.pause(members, step, FOREVER)

    def end_pauses(self, step: int) -> None:
        """Train members again whose pause ends by this step."""
        if self.state:
            over = self.state["rest.until"] <= step
            self.state["rest.at"][over] = -1
            self.state["rest.until"][over] = FOREVER

    def own_steps(self, steps: list[int]) -> list[int]:
        """Return [N] the steps that each member has made, given those that it would have made if it was always trained."""
        if not self.state:
            return steps
        ends = self.state["rest.at"].tolist()
        return [step if at < 0 else min(step, at) for step, at in zip(steps, ends, strict=True)]

    def note(self, metric: str, values: Tensor) -> None:
        """Add the values [N] of a look or of a record; values that are not finite are left out."""
        if self.settings is None or metric != self.settings.metric:
            return
        values = values.detach().double().cpu()
        known = torch.isfinite(values) & self.is_trained
        self.state["rest.sum"] += torch.where(known, values, 0.0)
        self.state["rest.seen"] += known

    def judge(self, step: int, well: Tensor) -> list[Converged]:
        """End the windows that are long enough, and return the members that converged.

        Args:
            well: bool [N], False for members that have an alarm: they cannot converge.
        """
        if self.settings is None:
            return []
        state, converged = self.state, []
        ends = self.is_trained & (step - state["rest.since"] >= self.settings.patience) & (state["rest.seen"] > 0)
        for member in torch.nonzero(ends)[:, 0].tolist():
            before = float(state["rest.before"][member])
            now = float(state["rest.sum"][member] / state["rest.seen"][member])
            if math.isfinite(before) and now > before * (1.0 - self.settings.least) and bool(well[member]):
                state["rest.at"][member] = step
                converged.append(Converged(member, before, now))
            else:
                self._begin_window(member, step, now)
        return converged

    def forget(self, member: int, step: int) -> None:
        """Forget a member's windows, for example after a repair, and train it."""
        if self.state:
            self.state["rest.at"][member] = -1
            self.state["rest.until"][member] = FOREVER
            self._begin_window(member, step, math.inf)

    def last_step(self, planned: int) -> int:
        """Return the last step of a run that was planned for `planned` steps; if no member is trained, that of the last one."""
        if not self.state:
            return planned
        at, until = self.state["rest.at"], self.state["rest.until"]
        paused = until < FOREVER
        if bool(paused.any()):  # Others are retrained, and their budget decides.
            return int(until[paused].max()) if bool((at < 0).any()) else int(at[~paused].max())
        return planned if bool(self.is_trained.any()) else int(at.max())

    def _begin_window(self, member: int, step: int, before: float) -> None:
        for name, value in (("since", step), ("sum", 0.0), ("seen", 0), ("before", before)):
            self.state[f"rest.{name}"][member] = value
