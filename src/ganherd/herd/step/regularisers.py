"""Terms of the discriminator's loss that need no second derivative: LeCam, consistency, and gradient penalties by noise."""

from __future__ import annotations

import torch
from torch import Tensor

from ganherd.herd.state import State
from ganherd.herd.step.rules import StepRules


def lecam(state: State, real: Tensor, fake: Tensor) -> Tensor:
    """Return the LeCam regulariser [N] of logits [N, B]: how far they lie beyond the running means of the other kind.

    Tseng et al., 2021: the discriminator of few images is kept from drawing real and generated images ever further apart.
    """
    means = {name: state[f"set.lecam_{name}"].to(real.dtype)[:, None] for name in ("real", "fake")}
    beyond = (real - means["fake"]).relu().square().mean(1)
    return beyond + (means["real"] - fake).relu().square().mean(1)


@torch.no_grad()
def track_logits_(rules: StepRules, state: State, real: Tensor, fake: Tensor) -> None:
    """Update what later updates need of the logits [N, B]: the running means of LeCam, and the strength of augmentation.

    Augmentation becomes stronger while the discriminator is surer of real images than `augment_target`, and weaker otherwise
    (ADA; Karras et al., 2020). The sureness is the mean sign of the logits.
    """
    if rules.lecam > 0:
        for name, logits in (("real", real), ("fake", fake)):
            mean = state[f"set.lecam_{name}"]
            mean.lerp_(logits.mean(1).to(mean.dtype), 1.0 - rules.lecam_decay)
    if rules.augment_target is not None:
        strength = state["set.augment_probability"]
        surer = torch.sign(torch.sign(real).mean(1).to(strength.dtype) - rules.augment_target)
        strength.copy_((strength + surer * (rules.batch / rules.augment_images)).clamp(0.0, 1.0))


def slope_by_noise(logits: Tensor, near: Tensor, sigma: float) -> Tensor:
    """Return an estimate of |gradient|² [N] from logits [N, B] of images and of the same images with noise of this deviation.

    E(D(x + σε) - D(x))² is σ²|∇D|² for small σ: a penalty that needs no second derivative.
    """
    return ((near - logits) / sigma).square().mean(1)
