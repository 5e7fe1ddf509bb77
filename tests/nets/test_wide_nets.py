"""The nets of R3GAN and StyleGAN2: how they start, bilinear resampling, styles, labels, and what runs as one operation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd.lowering.lower import VMAP, lower
from ganherd.nets import build_discriminator, build_generator
from ganherd.nets.common.resampling import upsample_bilinear
from ganherd.nets.common.scaled import ScaledConv2d, ScaledLinear
from ganherd.nets.r3gan import GroupedBlock
from ganherd.nets.stylegan import ModulatedConv
from ganherd.recipe.schema import NetConfig
from ganherd.util.errors import UserError

SHAPE, LATENT, CLASSES = (3, 32, 32), 8, 4
NAMES = ["r3gan", "stylegan"]


def pair(name: str, width: int = 16, shape: tuple[int, ...] = SHAPE, **settings: object) -> list[nn.Module]:
    torch.manual_seed(0)
    config = NetConfig(name=name, settings={"width": width, **settings})
    return [build_generator(config, shape, LATENT, CLASSES), build_discriminator(config, shape, CLASSES)]


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (5, 3)])
def test_bilinear_resampling_is_that_of_pytorch(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    assert torch.allclose(upsample_bilinear(x), expected, rtol=0, atol=1e-14)


def test_r3gan_has_the_published_size() -> None:
    """About 21 M parameters in each net of width 768."""
    with torch.device("meta"):
        for module in pair("r3gan", 768):
            assert 18e6 < sum(p.numel() for p in module.parameters()) < 24e6


def test_r3gan_blocks_start_as_the_identity_and_have_groups_of_16() -> None:
    for module in pair("r3gan", 32):
        blocks = [layer for layer in module.modules() if isinstance(layer, GroupedBlock)]
        assert len(blocks) == 4 * 2
        x = torch.randn(2, 32, 4, 4)
        assert all(torch.equal(block(x), x) for block in blocks)
        inner = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)]
        assert {(layer.in_channels, layer.groups) for layer in inner} == {(64, 4)}
        assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def test_modulated_convolution_is_a_convolution_with_the_modulated_weights_of_each_sample() -> None:
    torch.manual_seed(0)
    layer, x, w = ModulatedConv(3, 5, 4).double(), torch.randn(2, 3, 6, 6).double(), torch.randn(2, 4).double()
    style = layer.style(w)
    expected = []
    for image, s in zip(x, style, strict=True):
        weight = layer.conv.weight * s[None, :, None, None]
        weight = weight / (weight.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt()
        expected.append(F.leaky_relu(2**0.5 * F.conv2d(image[None], weight, padding=1), 0.2))
    assert torch.allclose(layer(x, w), torch.cat(expected), rtol=1e-12)


def test_signals_of_stylegan_keep_their_size() -> None:
    g, d = pair("stylegan", 64)
    sizes: list[float] = []
    for module in (g, d):
        for layer in module.modules():
            if isinstance(layer, ModulatedConv | ScaledConv2d | ScaledLinear):
                layer.register_forward_hook(lambda *given: sizes.append(given[2].std().item()))
    d(g(torch.randn(16, LATENT)))
    assert len(sizes) > 30 and all(0.1 < size < 10 for size in sizes), sizes


@pytest.mark.parametrize("name", NAMES)
def test_labels_count_if_they_are_asked_for(name: str) -> None:
    g, d = pair(name, shape=(1, 8, 8), label=True)
    z, x = torch.randn(1, LATENT).repeat(CLASSES, 1), torch.randn(1, 1, 8, 8).repeat(CLASSES, 1, 1, 1)
    for module, value in ((g, z), (d, x)):
        out: Tensor = module(value, torch.arange(CLASSES))
        assert (out[1:] - out[:1]).abs().max() > 1e-4
        assert torch.allclose(module(value, torch.zeros(CLASSES, dtype=torch.int64)), out[:1].expand_as(out))
    with pytest.raises(UserError, match="this data has no labels"):
        build_discriminator(NetConfig(name=name, settings={"label": True}), (1, 8, 8))


@pytest.mark.parametrize("name", NAMES)
def test_all_convolutions_and_products_run_on_all_members(name: str) -> None:
    """None of them falls back to vmap, which would run convolutions in groups."""
    for module in pair(name):
        operations = lower(module).explain()
        heavy = [one for one in operations if "Conv" in one.operation or "Linear" in one.operation]
        assert len(heavy) > 10 and not any(one.method == VMAP for one in heavy)
