"""The rules of a step: what it does that is the same for every member and every step."""

from __future__ import annotations

from dataclasses import dataclass

from ganherd.losses.adversarial import Game


@dataclass(frozen=True)
class StepRules:
    """What a step does that is the same for every member and every step."""

    game: Game
    batch: int
    latent: int
    prior: str = "normal"  # or uniform, or mixed: as `set.prior` says of each member
    n_critic: int = 1
    skip_d: int = 0
    order: str = "d-g"
    fakes: str = "fresh"  # or shared: both updates of a step see the same samples
    gp_weight: float = 10.0
    clip: float = 0.01
    clip_what: str = "all"
    grad_clip: float | None = None
    eps: float = 1e-8
    ema: float | None = None
    input_noise: bool = False
    input_noise_steps: int = 0
    input_noise_decay: str = "linear"
    input_noise_on: str = "both"
    precision: str = "float32"
    r1: float = 0.0  # gamma of the R1 penalty
    class_d: float = 1.0  # weight of what a discriminator that also tells classes pays for wrong ones,
    class_g: float = 1.0  # … and of what its generator pays
    flip: bool = False  # real images are mirrored at random
    augment: tuple[str, ...] = ()  # what is done to all that the discriminator sees
    smoothing: int = 0  # steps after a swap in which the learning rates are smoothed
    wander: str = "off"  # how learning rates mutate before each update: reference, lognormal
    wander_strength: float = 1e-4
    wander_probability: float = 0.5
    drawn_losses: int = 0  # the generator's loss is drawn at each step among so many of the game's, the first ones

    def d_updates(self, step: int) -> int:
        """How often the discriminator learns at this step."""
        return self.n_critic if step % (self.skip_d + 1) == 0 else 0
