"""Stop training members that have converged, so that the device works on the others.

A member's metric is averaged over windows of `patience` steps. If a window is hardly better than the one before, the member is
not trained any more from the next record on. There are two metrics. They cost nothing extra, because they come from
records and from looks (the regular health checks).

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
    """Return whether some members are paused at this step, because others are retrained.

    Args:
        state: That of a checkpoint.
    """
    until = state.get("rest.until", torch.tensor([FOREVER]))
    return bool(((until < FOREVER) & (until > step)).any())


class Convergence:
    """Track each member's metric over windows of steps, and which members are trained.

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
            settings: The recipe's `train.stop`: metric, patience and the least improvement. None: members do not
                converge.
            size: The number of members of the whole herd.
            remembered: The tensors of the checkpoint; None: this is a new run.
            frozen: Members that are never trained in this run. A list, even an empty one, allows members to be stopped
                or paused later. None: they can be only if `settings` has a patience, or if they could in the
                checkpoint.
        """
        self.settings = settings if settings is not None and settings.patience else None
        self.state: State = {}
        self._size = size
        is_saved = any(name.startswith("rest.") for name in remembered or {})
        if self.settings is not None or frozen is not None or is_saved:
            self.state = {
                "rest.at": torch.full((size,), -1),  # the step from which the member is not trained; -1: it is trained
                "rest.until": torch.full((size,), FOREVER),  # … and the step from which it is trained again
                "rest.since": torch.zeros(size, dtype=torch.int64),  # the step at which its window began
                "rest.sum": torch.zeros(size, dtype=torch.float64),  # sum of the metric in its window
                "rest.seen": torch.zeros(size, dtype=torch.int64),  # the number of values in that sum
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
        """The members that are trained; None if all are."""
        return None if bool(self.is_trained.all()) else torch.nonzero(self.is_trained)[:, 0].tolist()

    def pause(self, members: Collection[int], step: int, until: int) -> None:
        """Do not train these members from `step` to `until`, while others are retrained.

        Members that are not trained anyway stay as they are.
        """
        for member in members:
            if self.state["rest.at"][member] < 0:
                self.state["rest.at"][member], self.state["rest.until"][member] = step, until

    def stop(self, members: Collection[int], step: int) -> None:
        """Do not train these members any more from `step` on. Members that are not trained anyway stay as they are."""
        self.pause(members, step, FOREVER)

    def end_pauses(self, step: int) -> None:
        """Train those members again whose pause ends at this step or earlier."""
        if self.state:
            over = self.state["rest.until"] <= step
            self.state["rest.at"][over] = -1
            self.state["rest.until"][over] = FOREVER

    def own_steps(self, steps: list[int]) -> list[int]:
        """Return the number of steps that each member has made [N].

        Args:
            steps: The number of steps that each member would have made if it was always trained [N].
        """
        if not self.state:
            return steps
        ends = self.state["rest.at"].tolist()
        return [step if at < 0 else min(step, at) for step, at in zip(steps, ends, strict=True)]

    def note(self, metric: str, values: Tensor) -> None:
        """Add the values [N] of a metric to the members' windows.

        Ignore values that are not finite, and other metrics.
        """
        if self.settings is None or metric != self.settings.metric:
            return
        values = values.detach().double().cpu()
        known = torch.isfinite(values) & self.is_trained
        self.state["rest.sum"] += torch.where(known, values, 0.0)
        self.state["rest.seen"] += known

    def judge(self, step: int, well: Tensor) -> list[Converged]:
        """End the windows that are long enough, and stop and return the members that converged.

        A member has converged if its mean metric fell by less than the share `settings.least` since the window before.

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
        """Start the first window of a member anew at `step`, for example after a repair, and train the member."""
        if self.state:
            self.state["rest.at"][member] = -1
            self.state["rest.until"][member] = FOREVER
            self._begin_window(member, step, math.inf)

    def last_step(self, planned: int) -> int:
        """Return the last step of a run that was planned for `planned` steps.

        If no member is trained any more, that is the step at which the last one was stopped. If some members are paused
        while others are retrained, it is the step at which the pause ends, or at which the last retrained member was
        stopped.
        """
        if not self.state:
            return planned
        at, until = self.state["rest.at"], self.state["rest.until"]
        paused = until < FOREVER
        if bool(paused.any()):  # others are retrained, and the length of the retraining decides
            return int(until[paused].max()) if bool((at < 0).any()) else int(at[~paused].max())
        return planned if bool(self.is_trained.any()) else int(at.max())

    def _begin_window(self, member: int, step: int, before: float) -> None:
        """Start a new window of a member at `step`. `before`: its mean metric in the window before."""
        for name, value in (("since", step), ("sum", 0.0), ("seen", 0), ("before", before)):
            self.state[f"rest.{name}"][member] = value
