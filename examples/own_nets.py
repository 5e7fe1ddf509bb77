"""Your own generator and discriminator, trained as a herd: plain modules for one GAN, of which each digit gets a pair."""

import math
import sys

import torch
from torch import nn

import ganherd


class MyGenerator(nn.Module):
    def __init__(self, shape: tuple[int, ...], latent: int, width: int = 96) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.Sequential(
            nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, math.prod(shape))
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(z)).reshape(-1, *self.shape)


class MyDiscriminator(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.SiLU(), nn.Linear(128, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # one logit for each image


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "400"
    run = ganherd.train(
        data="digits",  # by class: ten digits, so ten members
        nets={"generator": {"name": MyGenerator, "width": 128}, "discriminator": MyDiscriminator, "latent": 16},
        optim={"lr_g": 1e-3, "lr_d": 1e-3, "beta2": 0.9},
        train={"budget": f"{steps}steps", "batch": 32, "n_critic": 2, "ema": 0.99},
    )
    print(run.sample(100).save(f"{run.path}/own_nets.png"))
