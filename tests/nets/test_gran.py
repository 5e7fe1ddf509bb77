"""GRAN's generator: the recurrence of its paper, the maps of its authors' runs, and samples that are what was trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd.lowering.lower import FUSED, VMAP, lower
from ganherd.nets import build_discriminator, build_generator
from ganherd.nets.gran import GranGenerator, StepNorm
from ganherd.recipe.schema import NetConfig


def gran(shape: tuple[int, int, int], latent: int, **settings: Any) -> GranGenerator:
    module = build_generator(NetConfig(name="gran", settings=settings), shape, latent)
    assert isinstance(module, GranGenerator)
    return module


def bold(module: GranGenerator) -> GranGenerator:
    """With larger weights and biases, so that paint fills the range and every part of the net counts."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, (nn.ConvTranspose2d, nn.Conv2d)):
                layer.weight.mul_(15)
                if layer.bias is not None:
                    layer.bias.normal_(0, 0.3)
            if isinstance(layer, StepNorm):
                layer.norms[0].bias.normal_(0, 0.5)
    return module


@pytest.mark.parametrize(
    ("shape", "settings", "f", "g"),
    [
        (  # MNIST: 7x7x256, 14x14x128, 28x28x1
            (1, 28, 28),
            {"width": 128},
            200 * 12544 + 2 * 12544 + 25 * (256 * 128 + 128) + 128 + 1,
            25 * (128 + 128 * 256) + 2 * 128 + 256 + 12544 * 100 + 2 * 100,
        ),
        (  # CIFAR-10: 4x4x1024, 512, 256, 3
            (3, 32, 32),
            {"width": 256, "steps": 5},
            200 * 16384 + 2 * 16384 + 25 * (1024 * 512 + 512 * 256 + 256 * 3) + 512 + 256 + 3,
            25 * (3 * 256 + 256 * 512 + 512 * 1024) + 2 * (256 + 512) + 1024 + 16384 * 100 + 2 * 100,
        ),
        (  # LSUN: 4x4x172, 1376, 688, 344, 3
            (3, 64, 64),
            {"width": 344, "first": 172},
            202 * 2752 + 25 * (172 * 1376 + 1376 * 688 + 688 * 344 + 344 * 3) + 1376 + 688 + 344 + 3,
            25 * (3 * 344 + 344 * 688 + 688 * 1376 + 1376 * 172) + 2 * (344 + 688 + 1376) + 172 + 2752 * 100 + 200,
        ),
    ],
    ids=["mnist", "cifar10", "lsun"],
)
def test_the_authors_maps(shape: tuple[int, int, int], settings: dict[str, int], f: int, g: int) -> None:
    with torch.device("meta"):
        module = gran(shape, 100, **settings)
    noise = 100 * 100 + 2 * 100
    assert sum(p.numel() for p in module.parameters()) == noise + f + g  # the same for any number of steps above 1


def test_the_recurrence_as_the_paper_writes_it() -> None:
    """With batch statistics, f on the concatenation [h_z, h], h_0 = 0, and everything shared by the steps."""
    torch.manual_seed(0)
    module = bold(gran((2, 12, 12), 5, width=3, first=4, steps=4)).double()
    w = dict(module.named_parameters())
    z = torch.randn(6, 5, dtype=torch.float64)

    def norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        over = [0, 2, 3][: x.dim() - 1] if x.dim() == 4 else [0]
        centred = x - x.mean(over, keepdim=True)
        return centred / (centred.square().mean(over, keepdim=True) + 1e-5).sqrt() * gain + shift

    def affine(step_norm: str) -> tuple[Tensor, Tensor]:
        return w[f"{step_norm}.norms.0.weight"], w[f"{step_norm}.norms.0.bias"]

    def f(r: Tensor) -> Tensor:
        both = torch.cat([w["paint.of_noise.weight"], w["paint.of_canvas.weight"]], dim=1)
        h = norm(r @ both.T, *affine("paint.norm")).relu().reshape(6, 4, 6, 6)
        return F.conv_transpose2d(h, w["paint.layers.2.weight"], w["paint.layers.2.bias"], 2, 2, 1)

    def g(paint: Tensor) -> Tensor:
        h = F.conv2d(paint, w["look.deepest.weight"], w["look.deepest.bias"], 2, 2).relu().flatten(1)
        return norm(h @ w["look.out.weight"].T, *affine("look.out_norm")).tanh()

    h_z = norm(z @ w["noise.0.weight"].T, w["noise.1.weight"], w["noise.1.bias"]).tanh()
    h, canvas = torch.zeros_like(h_z), torch.zeros(6, 2, 12, 12, dtype=torch.float64)
    for _ in range(4):
        paint = f(torch.cat([h_z, h], dim=1))
        h, canvas = g(paint), canvas + paint
    expected = canvas.tanh()
    assert torch.allclose(module(z), expected, rtol=0, atol=1e-12)
    assert expected.std() > 0.1  # paint enough to see a difference


@pytest.mark.parametrize("side", [8, 28, 32, 64])
@pytest.mark.parametrize("steps", [1, 3])
def test_sizes_and_steps(side: int, steps: int) -> None:
    module = gran((3, side, side), 6, width=2, steps=steps)
    d = build_discriminator(NetConfig(name="dcgan5", settings={"width": 2}), (3, side, side))
    x = module(torch.randn(4, 6))
    assert x.shape == (4, 3, side, side) and d(x).shape == (4,)
    x.sum().backward()
    assert all(p.grad is not None for p in module.parameters())  # one step needs no encoder, and has none


def test_statistics_are_moved_once_by_each_step() -> None:
    module = bold(gran((1, 14, 14), 6, width=3, steps=3))
    before = {name: b.clone() for name, b in module.named_buffers()}
    module(torch.randn(5, 6))
    counts = [b for name, b in module.named_buffers() if name.endswith("num_batches_tracked")]
    assert counts and all(count == 1 for count in counts)
    means = {name: b for name, b in module.named_buffers() if name.startswith("paint.norm") and "mean" in name}
    assert len(means) == 3 and all(not torch.equal(b, before[name]) for name, b in means.items())
    first, second, third = means.values()
    assert not torch.allclose(first, second) and not torch.allclose(second, third)


def test_a_sample_in_evaluation_mode_is_what_was_trained() -> None:
    """Statistics of one batch, taken by each step for itself, give that batch again."""
    torch.manual_seed(1)
    module = bold(gran((1, 14, 14), 6, width=4, steps=3))
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0
    z = torch.randn(2000, 6)
    with torch.no_grad():
        trained = module(z)
        sample = module.eval()(z)
        alone = module(z[:1])
    assert trained.std() > 0.1
    assert (sample - trained).square().mean().sqrt() < 0.01 * trained.std()  # the variance is unbiased, no more
    assert torch.allclose(alone, sample[:1], atol=1e-5)  # and each sample depends on its own noise alone


def test_every_layer_is_lowered() -> None:
    lowered = lower(gran((1, 14, 14), 6, width=3))
    assert lowered is not None
    assert VMAP not in {each.method for each in lowered.explain()}


def test_a_norm_with_its_relu_is_one_operation_at_each_step() -> None:
    lowered = lower(gran((1, 28, 28), 6, width=3, steps=3))
    assert lowered is not None
    rectified = [each for each in lowered.explain() if each.operation == "ReLU" and each.method == FUSED]
    of = [each.reason.removeprefix("a part of ") for each in rectified]
    assert of == [
        "paint.norm.norms.0",
        "look.norms.0.norms.0",
        "paint.norm.norms.1",
        "look.norms.0.norms.1",
        "paint.norm.norms.2",
    ]
