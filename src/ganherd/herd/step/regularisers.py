"""Terms of the discriminators' loss that need no second derivative: LeCam, and gradient penalties estimated by noise.

All results are [N], one number for each of N members (GANs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ganherd.herd.state import State
from ganherd.herd.step.rules import StepRules


def lecam(state: State, real: Tensor, fake: Tensor) -> Tensor:
    """Return the LeCam regulariser [N] (Tseng et al., 2021) of the logits [N, B] of real and generated images.

    It is the mean square by which logits of real images exceed the running mean of those of generated images, plus the
    mean square by which logits of generated images fall below the running mean of those of real images. So a
    discriminator that is trained on few images does not move both kinds ever further apart.
    """
    means = {name: state[f"set.lecam_{name}"].to(real.dtype)[:, None] for name in ("real", "fake")}
    beyond = (real - means["fake"]).relu().square().mean(1)
    return beyond + (means["real"] - fake).relu().square().mean(1)


@torch.no_grad()
def track_logits_(rules: StepRules, state: State, real: Tensor, fake: Tensor) -> None:
    """Update what depends on the discriminators' logits [N, B] in the state: LeCam's running means, ADA's probability.

    ADA (Karras et al., 2020) raises the probability of augmentation if the mean sign of the logits of real images is
    above `augment_target`, which indicates overfitting, and lowers it otherwise.
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
    """Return an estimate of the mean squared norm of the logits' gradient by the images, [N].

    Its own gradient needs no second derivative, unlike that of the exact norm.

    For standard normal noise ε and small σ, the mean of (D(x + σε) - D(x))² is σ² |∇D(x)|².

    Args:
        logits: [N, B] of images x.
        near: [N, B] of the same images with noise, x + σε.
        sigma: The standard deviation σ of the noise.
    """
    return ((near - logits) / sigma).square().mean(1)
