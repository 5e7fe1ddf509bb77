"""Members folded into channels compute the same as separate modules, so the rival is implemented correctly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ganherd.bench.cases import CASES, recipe_of
from ganherd.nets import build_discriminator, build_generator
from ganherd.recipe.schema import NetConfig
from ganherd_benchmarks.grouped import GroupedHerd, GroupedNet
from ganherd_benchmarks.plain import PlainGanPair, RivalWork

NARROW = {
    "wcgan": ({"width": 4}, {"width": 2, "dropout": 0.0}, (3, 16, 16)),
    "dcgan": ({"width": 2}, {"width": 2}, (3, 32, 32)),
    "mlp": ({"hidden": [8]}, {"hidden": [8]}, (1, 8, 8)),
    "residual": ({"width": 2, "attention": True}, {"width": 2}, (3, 16, 16)),
    "small": ({"width": 8, "batch_norm": True}, {"width": 8}, (1, 8, 8)),
}


@pytest.mark.parametrize("name", NARROW)
def test_grouped_outputs_gradients_and_buffers_equal_separate_modules(name: str) -> None:
    g_settings, d_settings, shape = NARROW[name]
    torch.manual_seed(0)
    gs = [build_generator(NetConfig(name=name, settings=g_settings), shape, 5).double() for _ in range(3)]
    ds = [build_discriminator(NetConfig(name=name, settings=d_settings), shape).double() for _ in range(3)]
    g, d = GroupedNet(gs), GroupedNet(ds)
    z = torch.randn(3, 4, 5, dtype=torch.float64)
    fused = d(g(z))
    alone = torch.stack([one_d(one_g(own)) for one_g, one_d, own in zip(gs, ds, z, strict=True)])
    assert torch.allclose(fused, alone, rtol=0, atol=1e-12)
    found = torch.autograd.grad(fused.square().sum(), list(g.params.values()))
    wanted = [
        torch.autograd.grad(alone[i].square().sum(), list(gs[i].parameters()), retain_graph=True) for i in range(3)
    ]
    for stacked, each in zip(found, zip(*wanted, strict=True), strict=True):
        assert torch.allclose(stacked, torch.stack(each), rtol=0, atol=1e-10)
    for net, modules in ((g, gs), (d, ds)):
        for key, buffer in net.buffers.items():
            assert torch.allclose(buffer, torch.stack([dict(m.named_buffers())[key] for m in modules])), key


class Joins(nn.Module):
    """A list of tensors, a shape that is asked for, a parameter of low rank, a layer that grouping does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        both = torch.cat([x, self.scale * x], dim=1)
        return self.norm(both.reshape(x.shape[0], -1))


def test_functions_between_layers_are_mapped() -> None:
    modules = [Joins() for _ in range(2)]
    x = torch.randn(2, 5, 3)
    alone = torch.stack([module(own) for module, own in zip(modules, x, strict=True)])
    assert torch.allclose(GroupedNet(modules)(x), alone, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "small"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_step_of_each_way_updates_both_nets_and_clips(name: str, precision: str) -> None:
    """Equal work: both nets learn at every step, and where the loss clips, the discriminator is clipped."""
    case = replace(CASES[name], batch=4, loss="wasserstein" if name == "mlp" else CASES[name].loss)
    recipe = recipe_of(case, 2, "random", "cpu", precision)
    data = torch.randint(0, 256, (9, *case.shape), dtype=torch.uint8)
    work = RivalWork.of(case, recipe, data, torch.device("cpu"))
    for one in (PlainGanPair(work), GroupedHerd(work, 2)):
        nets = [dict(net.named_parameters()) if isinstance(net, nn.Module) else net.params for net in (one.g, one.d)]
        before = [{key: value.detach().clone() for key, value in net.items()} for net in nets]
        one.step()
        for old, new in zip(before, nets, strict=True):
            assert any(not torch.equal(old[key], new[key]) for key in old)
            assert all(torch.isfinite(value).all() for value in new.values())
        if case.loss == "wasserstein":
            assert max(float(value.detach().abs().max()) for value in nets[1].values()) <= recipe.loss.clip + 1e-9
