"""The rules of a training step: settings that are the same for every member (GAN) and every step."""

from __future__ import annotations

from dataclasses import dataclass

from ganherd.augment import NamedAugmentation
from ganherd.herd.step.schedules import SettingSchedule
from ganherd.losses.adversarial import Game


@dataclass(frozen=True)
class StepRules:
    """Settings of a training step that are the same for every member and every step.

    If members differ in `gp_weight`, `r1`, `ema` or `augment_probability`, the state has their own values (`set.gp_weight`,
    `set.r1`, `set.ema_decay`, `set.augment_probability`), and the value here only says whether the step needs it at all.
    """

    game: Game  # the losses
    batch: int
    latent: int
    packing: int = 1  # number of samples that the discriminator judges together, with one logit for all of them
    prior: str = "normal"  # normal, uniform, or mixed: `set.prior` of the state selects one of both for each member
    n_critic: int = 1  # discriminator updates in a step
    skip_d: int = 0  # number of steps without discriminator updates after each step with them
    order: str = "d-g"  # or g-d: which net is updated first
    fakes: str = "fresh"  # or shared: the last discriminator update and the generator's see the same samples
    gp_weight: float = 10.0
    clip: float = 0.01  # limit of weight clipping
    clip_what: str = "all"  # all: clip all trainable weights; anything else: leave out those of batch norms
    grad_clip: float | None = None  # largest norm of a member's gradient
    eps: float = 1e-8
    ema: float | None = None  # decay of the running average of the generators' weights
    input_noise: bool = False
    input_noise_steps: int = 0  # steps until the input noise has decayed to 0; 0: it is constant
    input_noise_decay: str = "linear"
    input_noise_on: str = "both"  # or real: only real images get noise
    precision: str = "float32"
    r1: float = 0.0  # gamma of the R1 penalty
    r2: float = 0.0  # gamma of the R2 penalty
    r1_every: int = 1  # R1 and R2 act only at each K-th step that updates the discriminator, but K times as strongly
    slope_noise: float = 0.0  # standard deviation of noise by which R1 and R2 are estimated; 0: by second derivatives
    lecam: float = 0.0  # weight of the LeCam regulariser
    lecam_decay: float = 0.99  # decay of LeCam's running means
    lecam_start: int = 0  # the first step at which the LeCam regulariser counts
    consistency: float = 0.0  # weight of the difference between logits of real images and of the same ones augmented
    consistency_fake: float = 0.0  # the same weight for generated images
    consistency_augment: tuple[str | NamedAugmentation, ...] = ()  # the augmentations that these two compare with
    class_d: float = 1.0  # weight of the class loss in the discriminator's loss, if it also predicts classes
    class_g: float = 1.0  # weight of the class loss in the generator's loss
    flip: bool = False  # mirror real images at random
    augment: tuple[str | NamedAugmentation, ...] = ()  # augmentations of all images that the discriminator sees
    augment_probability: float = 1.0  # the probability with which each image is augmented
    # The mean sign of the logits of real images towards which `augment_probability` is adapted (ADA); None: it is not
    # adapted.
    augment_target: float | None = None
    augment_images: int = 500_000  # number of images in which the adapted probability can move from 0 to 1 at most
    smoothing: int = 0  # steps after a swap during which the learning rates are smoothed
    wander: str = "off"  # random mutation of learning rates before each update: off, reference or lognormal
    wander_strength: float = 1e-4  # size of a mutation; see `mutate_learning_rates_`
    wander_probability: float = 0.5  # probability with which a member's learning rate is mutated
    weight_decay: bool = False  # shrink all weights at every update, by `set.weight_decay` times the learning rate
    l2: bool = False  # add `set.l2_weight` times the weights to every gradient
    schedules: tuple[SettingSchedule, ...] = ()  # factors of members' settings that depend on the step
    drawn_losses: int = 0  # draw the generator's loss at each step from the first N losses of the game; 0: never

    def d_updates(self, step: int) -> int:
        """Return the number of discriminator updates at a step: `n_critic`, or 0 if the step is skipped by `skip_d`."""
        return self.n_critic if step % (self.skip_d + 1) == 0 else 0

    @property
    def uses_r1_or_r2(self) -> bool:
        """Return whether the R1 or the R2 penalty is used at all."""
        return self.r1 > 0 or self.r2 > 0

    def uses_r1_or_r2_at(self, step: int) -> bool:
        """Return whether R1 and R2 act at this step, which must be one that updates the discriminator."""
        return self.uses_r1_or_r2 and step // (self.skip_d + 1) % self.r1_every == 0

    @property
    def period(self) -> int:
        """Return the number of steps after which the sequence of updates and penalties repeats."""
        return (self.skip_d + 1) * (self.r1_every if self.uses_r1_or_r2 else 1)
