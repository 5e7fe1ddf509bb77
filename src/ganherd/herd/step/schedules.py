"""Schedules of settings such as learning rates: factors that depend on the step alone, also in a resumed run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State, own_setting


@dataclass(frozen=True)
class SettingSchedule:
    """A factor of some settings that moves from the value `first` to the value `last` during some steps of the run."""

    settings: tuple[str, ...]  # names of members' settings, e.g. `lr_g`
    shape: str  # linear, cosine, inverse (1 / factor moves linearly) or step (it jumps at `start`)
    start: int  # the step at which the factor begins to move
    over: int  # the number of steps from `start` until it has reached `last`
    first: float
    last: float

    def factor(self, step: int | Tensor) -> float | Tensor:
        """Return the factor at a step. If the step is a tensor, as in a captured CUDA graph, so is the factor.

        >>> halved = SettingSchedule(("lr_g",), "linear", 10, 20, 1.0, 0.5)
        >>> [halved.factor(step) for step in (0, 10, 20, 30, 99)]
        [1.0, 1.0, 0.75, 0.5, 0.5]
        >>> [round(SettingSchedule(("lr_g",), "inverse", 0, 20, 1.0, 0.5).factor(step), 3) for step in (0, 10, 20)]
        [1.0, 0.667, 0.5]
        """
        if isinstance(step, Tensor):
            done = ((step.to(torch.float64) - self.start) / max(1, self.over)).clamp(0.0, 1.0)
            if self.shape == "step":
                return torch.where(step >= self.start, self.last, self.first).to(torch.float64)
            moved: float | Tensor = 0.5 - 0.5 * torch.cos(math.pi * done) if self.shape == "cosine" else done
        else:
            share = min(1.0, max(0.0, (step - self.start) / max(1, self.over)))
            if self.shape == "step":
                return self.last if step >= self.start else self.first
            moved = 0.5 - 0.5 * math.cos(math.pi * share) if self.shape == "cosine" else share
        if self.shape == "inverse":  # 1 / factor moves evenly
            return 1.0 / (1.0 / self.first + (1.0 / self.last - 1.0 / self.first) * moved)
        return self.first + (self.last - self.first) * moved


def factor_of(schedules: Sequence[SettingSchedule], setting: str, step: int | Tensor) -> float | Tensor:
    """Return the product of the factors of all schedules of a setting at a step; 1.0 if it has no schedule."""
    factor: float | Tensor = 1.0
    for schedule in schedules:
        if setting in schedule.settings:
            factor = factor * schedule.factor(step)
    return factor


def scheduled(
    state: State, schedules: Sequence[SettingSchedule], setting: str, common: float, step: int | Tensor
) -> float | Tensor:
    """Return the value of a setting at a step, times the factors of its schedules.

    Args:
        setting: The name of the setting, without the prefix `set.`.
        common: The value that all members have, unless the state has a value of each member.

    Returns:
        [N] if members differ in the setting; otherwise one number, or a scalar tensor if the step is a tensor.
    """
    own, factor = own_setting(state, setting, common), factor_of(schedules, setting, step)
    if isinstance(own, float | int) and isinstance(factor, Tensor):
        factor = factor.to(state["g.params"].dtype)
    return own * factor
