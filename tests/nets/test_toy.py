"""The toy nets: GAP's four layers by default, ALI's and PacGAN's by their settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ganherd.herd.lowering.lower import lower
from ganherd.nets import build_discriminator, build_generator
from ganherd.recipe.schema import NetConfig

PACGAN_G = {"width": 400, "init": "normal"}
PACGAN_D: dict[str, Any] = {"width": 200, "layers": 3, "activation": "maxout", "batch_norm": False, "init": "normal"}


def discriminator(**settings: Any) -> nn.Module:
    return build_discriminator(NetConfig(name="toy", settings=settings), (2,))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_pacgans_sizes() -> None:
    g = build_generator(NetConfig(name="toy", settings=PACGAN_G), (2,), 2)
    # four layers of 400 with batch norm and no bias, a linear output
    assert count(g) == 2 * 400 + 3 * 400 * 400 + 4 * 2 * 400 + (400 + 1) * 2
    # three layers of 200 units, each the largest of five pieces with a bias
    assert count(discriminator(**PACGAN_D)) == (2 + 1) * 1000 + 2 * (200 + 1) * 1000 + 201


def test_pacgans_weights_begin_small() -> None:
    torch.manual_seed(0)
    for module in (build_generator(NetConfig(name="toy", settings=PACGAN_G), (2,), 2), discriminator(**PACGAN_D)):
        linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        assert all(layer.bias.abs().max() == 0 for layer in linear if layer.bias is not None)
        assert all(abs(layer.weight.std().item() - 0.02) < 0.001 for layer in linear if layer.weight.numel() > 10_000)


def test_maxout_is_the_largest_of_five_linear_pieces() -> None:
    torch.manual_seed(0)
    d = discriminator(width=3, layers=2, activation="maxout", batch_norm=False)
    x = torch.randn(7, 2)
    h = x
    first, second, out = (layer for layer in d.modules() if isinstance(layer, nn.Linear))
    for layer in (first, second):
        pieces = h @ layer.weight.T + layer.bias
        h = torch.stack([pieces[:, 5 * unit : 5 * unit + 5].max(1).values for unit in range(3)], dim=1)
    assert torch.allclose(d(x), (h @ out.weight.T + out.bias)[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "kind"), [("leaky", "LeakyReLU"), ("relu", "ReLU"), ("maxout", "Maxout")], ids=str
)
@pytest.mark.parametrize("batch_norm", [True, False])
def test_layers_of_the_discriminator(activation: str, kind: str, batch_norm: bool) -> None:
    d = discriminator(width=4, layers=3, activation=activation, batch_norm=batch_norm)
    kinds = [type(m).__name__ for m in d.modules() if not list(m.children())]
    block = ["Linear", "BatchNorm1d", kind] if batch_norm else ["Linear", kind]
    assert kinds == [*3 * block, "Linear"]
    assert d(torch.randn(5, 2)).shape == (5,)
    assert lower(d) is not None


def test_the_default_is_gaps() -> None:
    kinds = [type(m).__name__ for m in discriminator().modules() if not list(m.children())]
    assert kinds == [*4 * ["Linear", "BatchNorm1d", "LeakyReLU"], "Linear"]
