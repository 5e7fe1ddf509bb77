"""Define a generator and a discriminator as users write them; `ganherd bench start` copies this file to train them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class OwnAttention(nn.Module):
    """Self-attention between all positions of an image, by plain matrix products."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, C, H, W] plus the attention output of each position."""
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        weights = torch.softmax(q.transpose(1, 2) @ k * c**-0.5, -1)
        result: Tensor = x + self.out((v @ weights.transpose(1, 2)).reshape(b, c, h, w))
        return result


class OwnGenerator(nn.Module):
    """A generator that upsamples by PixelShuffle, with group norms, SiLU and attention."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int = 64) -> None:
        super().__init__()
        self.width, self.side = width, shape[1] // 4
        self.start = nn.Linear(latent, width * self.side**2)
        self.attention = OwnAttention(width)
        self.up = nn.Sequential(*(layer for _ in range(2) for layer in self._block(width)))
        self.image = nn.Conv2d(width, shape[0], 3, padding=1)

    def _block(self, width: int) -> tuple[nn.Module, ...]:
        return nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2)

    def forward(self, z: Tensor) -> Tensor:
        """Return images [B, C, H, W] in [-1, 1] for noise z [B, latent]."""
        x = self.start(z).reshape(-1, self.width, self.side, self.side)
        return torch.tanh(self.image(self.up(self.attention(x))))


class OwnDiscriminator(nn.Module):
    """A discriminator with strided convolutions, instance norms, a layer that is used twice, and average pooling."""

    def __init__(self, shape: tuple[int, int, int], width: int = 64) -> None:
        super().__init__()
        self.start = nn.Conv2d(shape[0], width, 4, 2, 1)
        self.down = nn.Sequential(nn.Conv2d(width, width, 4, 2, 1), nn.InstanceNorm2d(width), nn.LeakyReLU(0.2))
        self.twice = nn.Conv2d(width, width, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, 1] for images [B, C, H, W]."""
        h = self.down(nn.functional.leaky_relu(self.start(x), 0.2))
        h = h + self.twice(nn.functional.silu(self.twice(h)))
        result: Tensor = self.score(self.pool(h).flatten(1))
        return result
