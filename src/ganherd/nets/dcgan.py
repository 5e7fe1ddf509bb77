"""DCGAN in its PyTorch-era form (4x4 kernels, stride 2, padding 1, no fully connected layer) at 28, 32 and 64 px."""

from __future__ import annotations

from torch import Tensor, nn

from ganherd.nets.catalog import check_shape
from ganherd.nets.common.blocks import init_dcgan, leaky

# image size: (size of the first feature map, how often it doubles up to the image)
_STAGES = {28: (7, 2), 32: (4, 3), 64: (4, 4)}


class DcganGenerator(nn.Module):
    """Transposed convolutions with batch norm and ReLU, from noise to an image."""

    def __init__(self, shape: tuple[int, ...], latent: int, *, width: int = 64) -> None:
        super().__init__()
        check_shape("generator", "dcgan", shape)
        start, doublings = _STAGES[shape[1]]
        n = width * 2 ** (doublings - 1)
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent, n, start, bias=False), nn.BatchNorm2d(n), nn.ReLU()]
        for _ in range(doublings - 1):
            layers += [nn.ConvTranspose2d(n, n // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(n // 2), nn.ReLU()]
            n //= 2
        layers += [nn.ConvTranspose2d(n, shape[0], 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        init_dcgan(self)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z[:, :, None, None])  # [B, C, H, W]
        return x


class DcganDiscriminator(nn.Module):
    """Convolutions with LeakyReLU, and batch norm after all but the first."""

    def __init__(self, shape: tuple[int, ...], *, width: int = 64, batch_norm: bool = True) -> None:
        super().__init__()
        check_shape("discriminator", "dcgan", shape)
        end, halvings = _STAGES[shape[1]]
        layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 4, 2, 1, bias=False), leaky()]
        n = width
        for _ in range(halvings - 1):
            # without batch norm nothing else shifts the activations, so the convolution gets a bias
            layers.append(nn.Conv2d(n, 2 * n, 4, 2, 1, bias=not batch_norm))
            layers += [nn.BatchNorm2d(2 * n), leaky()] if batch_norm else [leaky()]
            n *= 2
        self.layers = nn.Sequential(*layers, nn.Conv2d(n, 1, end, bias=False), nn.Flatten())
        init_dcgan(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)  # [B, 1]
        return logits.squeeze(1)  # [B]
