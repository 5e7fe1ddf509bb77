"""The 5x5 DCGAN: the maps of GAP's and PacGAN's runs, at any size of image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ganherd.nets import build_discriminator, build_generator
from ganherd.nets.dcgan import halved
from ganherd.recipe.schema import NetConfig


def pair(shape: tuple[int, int, int], g: dict[str, Any], d: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    return (
        build_generator(NetConfig(name="dcgan5", settings=g), shape, 100),
        build_discriminator(NetConfig(name="dcgan5", settings=d), shape),
    )


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "g", "d", "of_g", "of_d"),
    [
        (  # 7x7x256, 128, 1 and back
            (1, 28, 28),
            {},
            {},
            102 * 12544 + 25 * (256 * 128 + 128) + 2 * 128 + 1,
            25 * (128 + 128 * 256) + 2 * (128 + 256) + 12544,
        ),
        (  # 4x4x1024, 512, 256, 3; 128, 256, 512
            (3, 32, 32),
            {"width": 256},
            {"width": 128},
            102 * 16384 + 25 * (1024 * 512 + 512 * 256 + 256 * 3) + 2 * (512 + 256) + 3,
            25 * (3 * 128 + 128 * 256 + 256 * 512) + 2 * (128 + 256 + 512) + 16 * 512,
        ),
        (  # GAP's churches: 4x4x172, 1376, 688, 344, 3; 128, 256, 512, 1024
            (3, 64, 64),
            {"width": 344, "first": 172},
            {"width": 128},
            102 * 2752 + 25 * (172 * 1376 + 1376 * 688 + 688 * 344 + 344 * 3) + 2 * (1376 + 688 + 344) + 3,
            25 * (3 * 128 + 128 * 256 + 256 * 512 + 512 * 1024) + 2 * (128 + 256 + 512 + 1024) + 16 * 1024,
        ),
        (  # stacked MNIST: 2x2x512, 256, 128, 64, 3 and back, the first convolution not normalised
            (3, 28, 28),
            {"width": 64, "depth": 4},
            {"width": 64, "depth": 4, "first_norm": False},
            102 * 2048 + 25 * (512 * 256 + 256 * 128 + 128 * 64 + 64 * 3) + 2 * (256 + 128 + 64) + 3,
            25 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512) + 64 + 2 * (128 + 256 + 512) + 4 * 512,
        ),
    ],
    ids=["mnist", "cifar10", "lsun", "stacked-mnist"],
)
def test_maps_of_the_runs(
    shape: tuple[int, int, int], g: dict[str, Any], d: dict[str, Any], of_g: int, of_d: int
) -> None:
    with torch.device("meta"):
        generator, discriminator = pair(shape, g, d)
    assert count(generator) == of_g
    assert count(discriminator) == of_d


@pytest.mark.parametrize(
    ("side", "depth", "edges"),
    [(28, 0, [14, 7]), (32, 0, [16, 8, 4]), (64, 0, [32, 16, 8, 4]), (28, 4, [14, 7, 4, 2]), (5, 0, [3])],
)
def test_the_maps_halve_inwards_and_double_outwards(side: int, depth: int, edges: list[int]) -> None:
    g, d = pair((1, side, side), {"width": 2, "depth": depth}, {"width": 2, "depth": depth})
    seen: list[tuple[str, int]] = []
    for module in (*g.modules(), *d.modules()):
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.register_forward_hook(lambda m, _, out: seen.append((type(m).__name__, out.shape[-1])))
    d(g(torch.randn(3, 100)))
    assert [edge for kind, edge in seen if kind == "Conv2d"] == edges
    assert [edge for kind, edge in seen if kind == "ConvTranspose2d"] == [*edges[-2::-1], side]
    assert [size[0] for size in halved((side, side), depth)] == [side, *edges]


@pytest.mark.parametrize(
    ("settings", "normed"),
    [({}, [True, True, True]), ({"first_norm": False}, [False, True, True]), ({"batch_norm": False}, [False] * 3)],
    ids=["gap", "dcgan", "gradient-penalty"],
)
def test_which_convolutions_are_normalised(settings: dict[str, bool], normed: list[bool]) -> None:
    """What is normalised has no bias, and the rest has one; the output never has."""
    layers = list(
        build_discriminator(NetConfig(name="dcgan5", settings={"width": 2, **settings}), (3, 32, 32)).modules()
    )
    after = [type(layers[i + 1]) for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert [kind is nn.BatchNorm2d for kind in after] == normed
    assert [layer.bias is None for layer in layers if isinstance(layer, nn.Conv2d)] == normed
    assert isinstance(layers[-1], nn.Linear) and layers[-1].bias is None
