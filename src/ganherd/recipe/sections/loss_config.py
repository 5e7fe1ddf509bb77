"""The section `loss` of a recipe: the losses, and the weights of penalties and regularisers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ganherd.recipe.augment_config import Augmentation
from ganherd.recipe.base import LossName, PerMember, Section, Steps, refuse
from ganherd.recipe.plugins.plugin_settings import full_settings
from ganherd.util.registry import LOSSES, Settings


class LossConfig(Section):
    """The losses of generators and discriminators."""

    name: LossName | Annotated[list[LossName], Field(min_length=1)] = "wasserstein-gp"  # one for all, or one per member
    gp_weight: PerMember = 10.0  # weight of the gradient penalty (wasserstein-gp)
    clip: float = Field(0.01, gt=0)  # largest absolute value of a critic's parameters (wasserstein)
    # parameters that are clipped; weights: not the gain and shift of batch norm
    clip_what: Literal["all", "weights"] = "all"
    r1_weight: PerMember = 0.0  # gamma of the R1 penalty, half of which is added to the discriminator's loss
    r2_weight: PerMember = 0.0  # gamma of the R2 penalty, the same at generated images
    # R1 and R2 act at each K-th step that updates the discriminator, K times as strongly (a CUDA graph holds K steps)
    r1_every: int = Field(1, ge=1, le=64)
    # standard deviation of noise on images by which R1 and R2 are estimated, without second derivatives; 0: exactly, with them
    slope_noise: float = Field(0.0, ge=0)
    lecam_weight: PerMember = 0.0  # weight of the LeCam regulariser, for few images
    lecam_start: Steps = 1000  # steps after which the LeCam regulariser takes effect
    # weight of the squared difference between logits of real images and of the same ones augmented (consistency regularisation)
    consistency_weight: PerMember = 0.0
    consistency_weight_fake: PerMember = 0.0  # the same for generated images (balanced consistency)
    # the augmentations whose effect on the logits consistency regularisation penalises
    consistency_augment: list[Augmentation] = ["flip", "translation"]
    class_weight: float = Field(1.0, ge=0)  # weight of the class loss, for discriminators that also classify (acgan)
    # weight of the class loss for the generator; default: class_weight
    class_weight_g: float | None = Field(None, ge=0)
    settings: Settings = Field({}, validate_default=True)  # settings of a loss of your own

    @property
    def names(self) -> list[str]:
        """The names of the losses, each once."""
        return list(dict.fromkeys(self.name)) if isinstance(self.name, list) else [self.name]

    @property
    def uses_consistency(self) -> bool:
        """Whether consistency regularisation is used: logits of images are compared with those of augmented ones."""
        return any(
            any(weight) if isinstance(weight, list) else weight
            for weight in (self.consistency_weight, self.consistency_weight_fake)
        )

    @model_validator(mode="after")
    def _something_to_compare(self) -> LossConfig:
        if self.uses_consistency and not self.consistency_augment:
            raise refuse(
                "loss.consistency_augment",
                "loss.consistency_weight compares images with augmented ones, and loss.consistency_augment is empty: list some",
            )
        return self

    @property
    def settings_by_name(self) -> dict[str, Settings]:
        """The settings of each loss by its name; empty if there are none."""
        return dict.fromkeys(self.names, self.settings) if self.settings else {}

    @field_validator("settings")
    @classmethod
    def _fit_the_loss(cls, settings: Settings, info: ValidationInfo) -> Settings:
        if "name" not in info.data:  # `name` is wrong, which is reported already.
            return settings
        name = info.data["name"]
        names = sorted(set(name)) if isinstance(name, list) else [name]
        if len(names) == 1:
            return full_settings(LOSSES, names[0], settings, "loss.settings")
        if settings:
            raise refuse(
                "loss.settings loss.name", "loss.settings is for one loss, and loss.name has several: leave it out"
            )
        return settings
