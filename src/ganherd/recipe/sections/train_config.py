"""The sections `optim`, `train` and `engine` of a recipe: what a step does, how long training lasts, and how it is computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ganherd.recipe.augment_config import Augmentation
from ganherd.recipe.base import (
    Budget,
    Bytes,
    ChancePerMember,
    DecayPerMember,
    Device,
    PerMember,
    Section,
    Steps,
    refuse,
)
from ganherd.recipe.member_values import ScheduleConfig
from ganherd.util.registry import ENGINES
from ganherd.util.text import did_you_mean


class OptimConfig(Section):
    """Settings of Adam: one value for all members, or one per member."""

    lr_g: PerMember = 2e-4  # learning rate of the generator
    lr_d: PerMember = 2e-4  # learning rate of the discriminator
    beta1: DecayPerMember = 0.5  # decay of the first moment
    beta2: DecayPerMember = 0.999  # decay of the second moment
    # shrinks all weights by this fraction times the learning rate at each update, as in AdamW
    weight_decay: PerMember = 0.0
    # adds this fraction of each weight to its gradient, after clipping, as DCGAN's code does; unlike weight_decay, it passes
    # through Adam's moments
    l2_weight: PerMember = 0.0
    eps: float = Field(1e-8, gt=0)  # added to the denominator of an update, against division by 0
    grad_clip: float | None = Field(None, gt=0)  # largest gradient norm of each member's net; null: no clipping


class StopConfig(Section):
    """When members stop. A member has converged if its metric, averaged over a window of steps, hardly improves any more."""

    patience: Steps = 0  # steps of a window (metric differs: at least ten measurements of it); 0: no member stops
    # differs: accuracy with which nearest neighbours separate samples from data (measured by run.watch); gap: difference of the
    # discriminator's outputs on real and generated, which estimates the distance for a Wasserstein loss
    metric: Literal["differs", "gap"] = "differs"
    least: float = Field(0.02, ge=0, lt=1)  # relative improvement below which a member has converged


class TrainConfig(Section):
    """The length of the training, and what a step does."""

    budget: Budget = "2000steps"  # steps, epochs, or time up to the saved mixture: 5000steps, 20epochs, 90s, 10m, 2h
    batch: int = Field(64, ge=1)  # samples per member and update
    n_critic: int = Field(1, ge=1)  # discriminator updates for each generator update, on fresh batches
    skip_d: int = Field(
        0, ge=0
    )  # the discriminator is updated at every (skip_d + 1)-th step only, but each step counts a batch of the epoch
    order: Literal["d-g", "g-d"] = "d-g"  # which net of a member is updated first
    # fresh: each update draws new samples; shared: the last discriminator update of a step and the generator's use the same
    fakes: Literal["fresh", "shared"] = "fresh"
    input_noise: PerMember = 0.0  # standard deviation of noise that is added to the discriminator's input
    input_noise_steps: Steps = 0  # steps after which the input noise has decayed to 0; 0: it does not decay
    # linear; or steps, as in the GAP authors' code: all of the noise for the first half of the steps, then a third
    input_noise_decay: Literal["linear", "steps"] = "linear"
    input_noise_on: Literal["both", "real"] = "both"  # inputs that get the noise: real and generated, or real only
    flip: bool = False  # mirror half of the real images
    # DiffAugment: changes of real and generated images before the discriminator sees them
    augment: list[Augmentation] = []
    augment_probability: ChancePerMember = 1.0  # probability that an image is augmented
    # adaptive augmentation: change each member's augment_probability until its discriminator is this sure of real
    # images (the mean sign of its logits; ADA has 0.6); null: the probability stays
    augment_target: float | None = Field(None, gt=-1, lt=1)
    # adaptive augmentation: the smallest number of real images over which the probability can move from 0 to 1
    augment_images: int = Field(500_000, ge=1)
    # decay of the running average of the generator's weights, which the mixture uses; lower in the first steps
    ema: DecayPerMember | None = None
    precision: Literal["float64", "float32", "tf32", "bf16"] = "float32"  # tf32, bf16: products on a GPU only
    # factors on settings that change during training, e.g. [{keys: [optim.lr_g, optim.lr_d], shape: cosine, last: 0}]
    schedules: list[ScheduleConfig] = []
    stop: StopConfig = StopConfig()  # stop members that have converged, so that the device trains the others

    @model_validator(mode="after")
    def _something_to_steer(self) -> TrainConfig:
        if self.augment_target is not None and not self.augment:
            raise refuse(
                "train.augment_target train.augment",
                "train.augment_target steers the probability of augmentation, and train.augment is empty: list some",
            )
        return self

    @model_validator(mode="after")
    def _updates_fit(self) -> TrainConfig:
        if self.input_noise_decay == "steps" and not self.input_noise_steps:
            raise refuse(
                "train.input_noise_decay train.input_noise_steps",
                "train.input_noise_decay steps needs train.input_noise_steps: the number of steps over which it decays",
            )
        return self


def _engine(name: str) -> str:
    if name != "auto" and not ENGINES.accepts(name):
        names = ["auto", *ENGINES.names()]
        raise refuse("", f"engine.name must be one of {', '.join(names)}, not {name!r}{did_you_mean(name, names)}")
    return name


class EngineConfig(Section):
    """How steps are computed on a device."""

    name: Annotated[str, AfterValidator(_engine)] = "auto"  # auto: the fastest on this machine, measured once
    device: Device = "auto"  # auto, cpu, cuda, or one GPU, such as cuda:1
    chunk: int | None = Field(None, ge=1)  # members on the device at once; default: measured
    memory: Bytes | None = None  # memory on the device for the state, such as 4GiB; default: most of what is free
    threads: int | None = Field(None, ge=1)  # threads on a CPU; default: measured
    balance: bool = True  # give faster ranks more members
    without_gpu: str = ""  # advice that is printed on machines without a GPU, for recipes that need one

    @model_validator(mode="after")
    def _graph_needs_a_gpu(self) -> EngineConfig:
        if self.name in ENGINES and ENGINES[self.name].needs_gpu and self.device == "cpu":
            raise refuse(
                "engine.name engine.device",
                f"engine.name {self.name} needs a GPU, and engine.device is cpu: set engine.name to fused or auto",
            )
        return self

    @property
    def needs_whole_herd(self) -> bool:
        """Whether the engine trains only a whole herd whose members all take the same steps."""
        return self.name in ENGINES and ENGINES[self.name].needs_whole_herd
