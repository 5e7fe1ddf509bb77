"""The residual nets and their label-taking kin: sizes, any image, a penalty's second derivatives, members fused as each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ganherd.herd.engine.engines import Plan
from ganherd.herd.lowering.lower import lower
from ganherd.herd.state import Blueprint, takes_label
from ganherd.losses.adversarial import r1_penalty
from ganherd.nets import build_discriminator, build_generator
from ganherd.nets.common.bodies import Attention
from ganherd.nets.common.spectral import SpectralConv2d, SpectralLinear
from ganherd.recipe.schema import NetConfig
from ganherd.util.errors import UserError
from promises.test_fused_equals_separate import differences, herd_of

NAMES = ["residual", "conditional"]
BODIES = ["residual", "plain"]
CLASSES = 4


def pair(
    name: str, shape: tuple[int, ...], g: dict[str, Any] | None = None, d: dict[str, Any] | None = None
) -> list[nn.Module]:
    """A narrow generator (latent 6) and discriminator."""
    torch.manual_seed(0)
    return [
        build_generator(NetConfig(name=name, settings={"width": 2, **(g or {})}), shape, 6, CLASSES),
        build_discriminator(NetConfig(name=name, settings={"width": 2, **(d or {})}), shape, CLASSES),
    ]


def labels(module: nn.Module, *shape: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, CLASSES, shape),) if takes_label(module) else ()


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "side", "g", "d"),
    [
        ("residual", 32, 3_555_779, 2_498_113),
        ("residual", 64, 8_276_419, 7_217_729),
        ("residual", 128, 12_997_059, 11_937_345),
        ("conditional", 32, 3_579_971, 2_503_233),
    ],
)
def test_parameters(name: str, side: int, g: int, d: int) -> None:
    """2 to 4 million each at 32 px; a block more at 64 and at 128 px."""
    shape = (3, side, side)
    with torch.device("meta"):
        generator = build_generator(NetConfig(name=name), shape, 128, 10)
        discriminator = build_discriminator(NetConfig(name=name), shape, 10)
    assert (count(generator), count(discriminator)) == (g, d)
    blocks = {32: 3, 64: 4, 128: 5}[side]
    assert len(generator.blocks) == len(discriminator.body.blocks) == blocks
    if side == 32:
        assert all(2_000_000 <= n <= 4_000_000 for n in (g, d))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 64, 64), (1, 128, 128), (1, 28, 28), (2, 5, 17)], ids=str)
def test_images_of_any_size(name: str, attention: bool, shape: tuple[int, ...]) -> None:
    g, d = pair(name, shape, {"attention": attention}, {"attention": attention})
    x = g(3 * torch.randn(2, 6), *labels(g, 2))
    assert x.shape == (2, *shape) and x.min() >= -1 and x.max() <= 1
    assert d(x, *labels(d, 2)).shape == (2,)


@pytest.mark.parametrize(("side", "d"), [(32, 2_935_873), (64, 9_490_497)])
def test_parameters_of_a_plain_body(side: int, d: int) -> None:
    """As SNGAN's own net at 32 px."""
    with torch.device("meta"):
        made = build_discriminator(NetConfig(name="residual", settings={"body": "plain"}), (3, side, side), 10)
    assert count(made) == d


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 64, 64), (1, 28, 28), (2, 9, 17)], ids=str)
def test_a_plain_body_for_images_that_can_be_halved(name: str, attention: bool, shape: tuple[int, ...]) -> None:
    _, d = pair(name, shape, d={"attention": attention, "body": "plain"})
    assert d(torch.randn(2, *shape), *labels(d, 2)).shape == (2,)
    with pytest.raises(UserError, match="halves these images 3 times, so no side may be below 8 px, and one has 5"):
        pair(name, (2, 5, 17), d={"attention": attention, "body": "plain"})


def test_one_width_everywhere_gives_the_nets_of_sngan() -> None:
    """Three blocks of 256 channels up from 4 px; four of 128 channels down to 8 px, two of which keep the size."""
    inner = {"growth": 1, "smallest": 8, "flat_blocks": 2}
    g, d = pair("residual", (3, 32, 32), {"width": 256, "growth": 1}, {"width": 128, **inner})
    wide = [m for m in g.modules() if isinstance(m, nn.Conv2d) and m.out_channels > 3]
    assert len(wide) == 6 and all(m.weight.shape == (256, 256, 3, 3) for m in wide)
    convolutions = [m for m in d.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 1 + 4 * 2 and {m.out_channels for m in convolutions} == {128}
    sizes: list[int] = []
    for block in d.get_submodule("body.blocks").children():
        block.register_forward_hook(lambda *given: sizes.append(given[2].shape[-1]))
    d(torch.randn(2, 3, 32, 32))
    assert sizes == [16, 8, 8, 8]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("side", [32, 64, 128])
def test_attention_looks_at_16_or_32_pixels(side: int, body: str) -> None:
    g, d = pair("residual", (3, side, side), {"attention": True}, {"attention": True, "body": body})
    seen: list[int] = []
    for module in (g, d):
        for layer in module.modules():
            if isinstance(layer, Attention):
                layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[-1]))
    d(g(torch.randn(2, 6)))
    assert seen == [min(side // 2, 32)] * 2


def test_attention_begins_as_nothing_and_then_looks_far() -> None:
    torch.manual_seed(0)
    layer, x = Attention(8), torch.randn(2, 8, 6, 6)
    assert torch.equal(layer(x), x)
    nn.init.ones_(layer.gamma)
    other = x.clone()
    other[:, :, 5, 5] += 3.0
    assert (layer(other) - layer(x))[:, :, 0, 0].abs().max() > 1e-4
    layer(x).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


@pytest.mark.parametrize(("body", "count"), [("residual", 1 + 3 * 2), ("plain", 3 + 2)])
def test_spectral_norm_is_a_switch_for_every_layer(body: str, count: int) -> None:
    for spectral in (True, False):
        _, d = pair("residual", (3, 16, 16), d={"attention": True, "spectral": spectral, "body": body})
        layers = [m for m in d.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        assert len(layers) == count + 4 + 1  # those of attention, and the head
        assert all(isinstance(m, (SpectralConv2d, SpectralLinear)) == spectral for m in layers)
        assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in d.modules())


@pytest.mark.parametrize("name", NAMES)
def test_no_logit_depends_on_the_other_images(name: str) -> None:
    _, d = pair(name, (3, 9, 9), d={"attention": True})
    d.eval()
    x, y = torch.randn(4, 3, 9, 9), labels(d, 4)
    alone = torch.cat([d(x[i : i + 1], *(label[i : i + 1] for label in y)) for i in range(4)])
    assert torch.allclose(d(x, *y), alone, atol=1e-5)


def test_the_label_is_seen() -> None:
    g, d = pair("conditional", (1, 8, 8))
    with torch.no_grad():
        for key, value in g.named_parameters():
            if "gain" in key or "shift" in key:  # all classes begin alike, so that none has a head start
                value.normal_()
    z, x = torch.randn(1, 6).repeat(CLASSES, 1), torch.randn(1, 1, 8, 8).repeat(CLASSES, 1, 1, 1)
    for module, value in ((g.eval(), z), (d.eval(), x)):
        out = module(value, torch.arange(CLASSES))
        assert (out[1:] - out[:1]).flatten(1 if out.dim() > 1 else 0).abs().max() > 1e-4
        assert torch.allclose(module(value, torch.zeros(CLASSES, dtype=torch.int64)), out[:1].expand_as(out))


@pytest.mark.parametrize("name", NAMES)
def test_label_nets_need_labels(name: str) -> None:
    for build, more in ((build_generator, (6,)), (build_discriminator, ())):
        if name == "residual":
            assert isinstance(build(NetConfig(name=name, settings={"width": 2}), (1, 8, 8), *more), nn.Module)
        else:
            with pytest.raises(UserError, match="this data has no labels"):
                build(NetConfig(name=name), (1, 8, 8), *more)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("spectral", [True, False])
def test_r1_of_stacked_members_is_each_ones_alone(name: str, body: str, spectral: bool) -> None:
    """The penalty [N] and its gradient, which differentiates the discriminator twice, in float64."""
    members, batch, shape = 3, 4, (3, 9, 8)
    settings = {"attention": True, "spectral": spectral, "body": body}
    alone = [pair(name, shape, d=settings)[1].double() for _ in range(members)]
    for i, module in enumerate(alone):
        torch.manual_seed(i)
        for key, parameter in module.named_parameters():
            nn.init.normal_(parameter, 0.5 if "gamma" in key else 0.0, 0.3)
    x, y = torch.randn(members, batch, *shape, dtype=torch.float64), labels(alone[0], members, batch)
    blueprint = Blueprint(alone[0])
    rows = torch.stack([blueprint.flatten_parameters(module) for module in alone]).requires_grad_()
    buffers = {k: torch.stack([m.state_dict()[k] for m in alone]).clone() for k in blueprint.buffers}
    lowered = lower(alone[0])
    assert lowered is not None

    def critic(images: Tensor) -> Tensor:
        return lowered(blueprint.views(rows), buffers, lambda: torch.zeros(members, dtype=torch.int64), images, *y)[0]

    penalty = r1_penalty(critic, x)
    (grads,) = torch.autograd.grad(penalty.sum(), rows)
    assert penalty.shape == (members,)
    for i, module in enumerate(alone):
        image = x[i].clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(image, *(v[i] for v in y)).sum(), image, create_graph=True)
        expected = sum(slope[b].pow(2).sum() for b in range(batch)) / batch
        assert torch.allclose(penalty[i], expected, rtol=1e-9, atol=0)
        expected.backward()
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        assert torch.allclose(grads[i], row_of(own), rtol=1e-8, atol=1e-10)
        weights = [m.weight for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in weights)


def row_of(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("role", "body"), [(0, "residual"), (1, "residual"), (1, "plain")])
def test_vmap_and_lowering_agree_with_each_member_alone(name: str, role: int, body: str) -> None:
    """Two training forwards in float64: outputs, gradients, batch-norm statistics and estimates of singular values."""
    members, batch, shape = 3, 4, (3, 9, 8)
    settings: tuple[dict[str, Any], dict[str, Any]] = ({"attention": True}, {"attention": True, "body": body})
    alone = [pair(name, shape, *settings)[role].double() for _ in range(members)]
    for i, module in enumerate(alone):
        torch.manual_seed(i)
        for parameter in module.parameters():
            nn.init.normal_(parameter, 0.1, 0.3)
    template = pair(name, shape, *settings)[role].double()
    blueprint, lowered = Blueprint(template), lower(template)
    assert lowered is not None
    rows = torch.stack([blueprint.flatten_parameters(module) for module in alone]).requires_grad_()
    views = blueprint.views(rows)
    start = {k: torch.stack([m.state_dict()[k] for m in alone]).clone() for k in blueprint.buffers}
    first, second = start, start

    def call(
        p: dict[str, Tensor], b: dict[str, Tensor], inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = {k: v.clone() for k, v in b.items()}
        return functional_call(template, {**p, **b}, inputs), b

    for _ in range(2):
        x = torch.randn(members, batch, *((6,) if role == 0 else shape), dtype=torch.float64)
        inputs = (x, *labels(template, members, batch))
        a, first = lowered(views, first, lambda: torch.zeros(members, dtype=torch.int64), *inputs)
        b, second = vmap(call)(views, second, inputs)
        grads = [torch.autograd.grad(out.square().sum(), rows, retain_graph=True)[0] for out in (a, b)]
        for i, module in enumerate(alone):
            out = module(*(v[i] for v in inputs))
            own = torch.autograd.grad(out.square().sum(), list(module.parameters()))
            for fused, slope, buffers in ((a, grads[0], first), (b, grads[1], second)):
                assert torch.allclose(fused[i], out, rtol=0, atol=1e-10)
                assert torch.allclose(slope[i], row_of(list(own)), rtol=1e-8, atol=1e-9)
                for key, value in module.named_buffers():
                    assert torch.allclose(buffers[key][i], value, rtol=0, atol=1e-10), key


@pytest.mark.further("residual-sections2-plan2")
@pytest.mark.parametrize(
    ("net", "sections", "plan"),
    [
        ("conditional", {"data": {"partition": "all"}, "herd": {"members": 3}}, Plan("fused", 3, 1, "cpu", "cpu")),
        ("conditional", {"data": {"partition": "all"}, "herd": {"members": 3}}, Plan("loop", 1, 1, "cpu")),
        (
            "residual",
            {"train": {"ema": 0.9, "n_critic": 2}, "loss": {"name": "hinge"}},
            Plan("fused", 2, 1, "cpu", "cpu"),
        ),
    ],
)
def test_trained_fused_as_trained_alone(tmp_path: Path, net: str, sections: dict[str, Any], plan: Plan) -> None:
    """Ten steps in float64; the promise's own suite has these nets with every loss."""
    found = differences(herd_of(tmp_path, net, **sections), 10, plan)
    assert any(name.endswith(".u") for name in found) and max(found.values()) < 1e-9, found
