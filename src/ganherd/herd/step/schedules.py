"""Schedules of settings: factors of a setting that are functions of the step alone, so that they are exact after a resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State, own_setting


@dataclass(frozen=True)
class SettingSchedule:
    """A factor of some settings that moves from one value to another, as a function of the step."""

    settings: tuple[str, ...]  # names of members' settings, e.g. `lr_g`
    shape: str  # linear, cosine, inverse or step
    start: int  # the step at which it begins to move
    over: int  # steps until it has arrived
    first: float
    last: float

    def factor(self, step: int | Tensor) -> float | Tensor:
        """Return the factor at a step; as a tensor if the step is one, for a captured graph.

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
    """Return the product of all schedules of a setting at a step; 1.0 if it has none."""
    factor: float | Tensor = 1.0
    for schedule in schedules:
        if setting in schedule.settings:
            factor = factor * schedule.factor(step)
    return factor


def scheduled(
    state: State, schedules: Sequence[SettingSchedule], setting: str, common: float, step: int | Tensor
) -> float | Tensor:
    """Return a setting at a step: of each member [N] if they differ in it, otherwise the common number."""
    own, factor = own_setting(state, setting, common), factor_of(schedules, setting, step)
    if isinstance(own, float | int) and isinstance(factor, Tensor):
        factor = factor.to(state["g.params"].dtype)
    return own * factor
