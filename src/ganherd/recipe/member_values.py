"""Settings of which every member has its own value, so that trials may differ in them or schedules move them.

A trial is one combination of settings in a sweep. All trials train as copies of the herd in one run.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ganherd.recipe.base import Section, Span, refuse
from ganherd.util.text import did_you_mean

# Settings of which every member has its own value, so that herds that differ in them can train as one.
TRIAL_KEYS = (
    "loss.name",
    "loss.gp_weight",
    "loss.r1_weight",
    "loss.r2_weight",
    "loss.lecam_weight",
    "loss.consistency_weight",
    "loss.consistency_weight_fake",
    "optim.lr_g",
    "optim.lr_d",
    "optim.beta1",
    "optim.beta2",
    "optim.weight_decay",
    "optim.l2_weight",
    "train.input_noise",
    "train.augment_probability",
    "train.ema",
    "nets.discriminator.dropout",
)
Value = float | int | str | bool | None | list[float] | list[int] | list[str]
Trial = dict[str, Value]  # values of some of these settings


def name_of_trial(trial: Trial) -> str:
    """Return the settings of a trial as text for people.

    >>> name_of_trial({"optim.lr_g": 0.001, "loss.name": "hinge", "train.ema": None})
    'lr_g 0.001, loss hinge, ema none'
    """
    words = []
    for key, value in trial.items():
        *sections, last = key.split(".")
        shown = f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)
        words.append(f"{sections[-1] if last == 'name' and sections else last} {shown}")
    return ", ".join(words)


# Settings that a schedule can move, each with its name in a member's state.
SCHEDULED = {
    "optim.lr_g": "lr_g",
    "optim.lr_d": "lr_d",
    "optim.beta1": "beta1",
    "optim.beta2": "beta2",
    "loss.gp_weight": "gp_weight",
    "loss.r1_weight": "r1",
    "loss.r2_weight": "r2",
    "loss.lecam_weight": "lecam",
    "loss.consistency_weight": "consistency",
    "loss.consistency_weight_fake": "consistency_fake",
    "train.augment_probability": "augment_probability",
}


class ScheduleConfig(Section):
    """A factor on some settings that moves from one value to another; several schedules of a setting are multiplied."""

    keys: Annotated[list[str], Field(min_length=1)]  # the settings, such as [optim.lr_g, optim.lr_d]
    # how it moves: evenly, as half a wave of a cosine, as 1 / (1 + c · time), or at once
    shape: Literal["linear", "cosine", "inverse", "step"] = "linear"
    start: Span = "0"  # when it begins to move, in steps, epochs or a fraction of the run
    over: Span = "1run"  # how long it moves (linear, cosine, inverse)
    first: float = Field(1.0, ge=0)  # the factor before; for betas, of what is missing to 1
    last: float = Field(ge=0)  # the factor afterwards

    @model_validator(mode="after")
    def _has_an_inverse(self) -> ScheduleConfig:
        if self.shape == "inverse" and not (self.first and self.last):
            raise refuse(
                "train.schedules",
                "train.schedules with shape inverse cannot start or end at 0: give first and last above 0",
            )
        return self

    @field_validator("keys")
    @classmethod
    def _can_move(cls, value: list[str]) -> list[str]:
        for key in value:
            if key not in SCHEDULED:
                hint = did_you_mean(key, SCHEDULED) or f"; it can move {', '.join(SCHEDULED)}"
                raise refuse("train.schedules", f"train.schedules cannot move {key}{hint}")
        return value
