"""The cases of the benchmark of public nets: which classes they are, and how they train."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from ganherd_benchmarks import public_nets, public_nets_later


@dataclass(frozen=True)
class PublicNet:
    """A generator and a discriminator, and the loss and batch of their benchmark."""

    about: str
    generator: type
    discriminator: type
    loss: str
    r1_weight: float = 0.0
    batch: int = 64
    latent: int = 128

    def nets(self, **settings: int) -> dict[str, Any]:
        """Return the section `nets` of a recipe, each net with those of the settings that its constructor knows.

        >>> PUBLIC_NETS["dcgan"].nets(width=8, groups=2)["discriminator"]
        {'name': 'ganherd_benchmarks.public_nets:DcganDiscriminator', 'width': 8}
        """
        return {
            role: {"name": f"{net.__module__}:{net.__qualname__}"}
            | {name: value for name, value in settings.items() if name in inspect.signature(net).parameters}
            for role, net in (("generator", self.generator), ("discriminator", self.discriminator))
        }


def _pair(module: Any, name: str) -> tuple[type, type]:
    return getattr(module, f"{name}Generator"), getattr(module, f"{name}Discriminator")


PUBLIC_NETS = {
    "dcgan": PublicNet("DCGAN", *_pair(public_nets, "Dcgan"), "non-saturating"),
    "sngan": PublicNet("SNGAN with nn.utils.spectral_norm", *_pair(public_nets, "Sngan"), "hinge"),
    "sagan": PublicNet("SAGAN", *_pair(public_nets, "Sagan"), "hinge"),
    "biggan": PublicNet("BigGAN without labels", *_pair(public_nets, "Biggan"), "hinge"),
    "stylegan2": PublicNet("StyleGAN2, with R1", *_pair(public_nets_later, "StyleGan2"), "non-saturating", 1.0),
    "r3gan": PublicNet("R3GAN's blocks, with R1", *_pair(public_nets_later, "R3Gan"), "non-saturating", 1.0),
    "unet": PublicNet("a U-Net discriminator", *_pair(public_nets_later, "UNet"), "hinge"),
    "fastgan": PublicNet("FastGAN", *_pair(public_nets_later, "FastGan"), "hinge"),
}
