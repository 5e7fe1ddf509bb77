"""Spectral norm: as PyTorch's own does it, its estimate a buffer that training moves, stacked members as each alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import spectral_norm

from ganherd.herd.lowering.lower import lower
from ganherd.herd.state import Blueprint
from ganherd.nets.common.spectral import SpectralConv2d, SpectralEmbedding, SpectralLinear, divide

Make = Callable[[], nn.Module]
LAYERS: dict[str, tuple[Make, Make, Callable[..., Tensor]]] = {  # ours, the plain layer, its input
    "conv": (
        lambda: SpectralConv2d(3, 5, 3, padding=1),
        lambda: nn.Conv2d(3, 5, 3, padding=1),
        lambda *n: torch.randn(*n, 4, 3, 6, 5, dtype=torch.float64),
    ),
    "linear": (
        lambda: SpectralLinear(4, 6),
        lambda: nn.Linear(4, 6),
        lambda *n: torch.randn(*n, 3, 4, dtype=torch.float64),
    ),
    "embedding": (
        lambda: SpectralEmbedding(7, 4),
        lambda: nn.Embedding(7, 4),
        lambda *n: torch.randint(0, 7, (*n, 9)),
    ),
}


class Two(nn.Module):
    """A layer inside of a net; squares give second derivatives of their own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out * out


@pytest.mark.parametrize("kind", LAYERS)
def test_spectral_norm_equals_pytorchs(kind: str) -> None:
    """Outputs, first and second derivatives and the estimate itself, over a few training forwards."""
    torch.manual_seed(0)
    make, plain, data = LAYERS[kind]
    ours, theirs = make().double(), plain().double()
    theirs.load_state_dict({k: v for k, v in ours.state_dict().items() if k != "u"})
    spectral_norm(theirs, dim=0)
    theirs.weight_u.copy_(ours.u)
    for _ in range(3):
        x = data()
        a, b = ours(x), theirs(x)
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
        assert torch.allclose(ours.u, theirs.weight_u, rtol=0, atol=1e-12)
        (da,) = torch.autograd.grad(a.pow(3).sum(), ours.weight, create_graph=True)
        (db,) = torch.autograd.grad(b.pow(3).sum(), theirs.weight_orig, create_graph=True)
        assert torch.allclose(da, db, rtol=1e-9, atol=1e-10)
        (dda,) = torch.autograd.grad(da.square().sum(), ours.weight)
        (ddb,) = torch.autograd.grad(db.square().sum(), theirs.weight_orig)
        assert torch.allclose(dda, ddb, rtol=1e-8, atol=1e-8) and dda.abs().max() > 0


def test_training_finds_the_largest_singular_value_and_evaluation_leaves_it_alone() -> None:
    torch.manual_seed(0)
    layer = SpectralConv2d(3, 8, 3)
    x = torch.randn(2, 3, 5, 5)
    for _ in range(100):
        layer(x)
    layer.eval()
    before = layer.u.clone()
    first, again = layer(x), layer(x)
    assert torch.equal(first, again) and torch.equal(layer.u, before)
    assert abs(torch.linalg.matrix_norm(layer.divided().detach().flatten(1), 2).item() - 1.0) < 1e-3


def test_one_forward_is_one_iteration() -> None:
    torch.manual_seed(0)
    layer = SpectralLinear(4, 3)
    u, weight = layer.u.clone(), layer.weight.detach()
    layer(torch.randn(2, 4))
    v = nn.functional.normalize(weight.T @ u, dim=0)
    assert torch.allclose(layer.u, nn.functional.normalize(weight @ v, dim=0), atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("how", ["lowered", "vmap"])
def test_stacked_members_equal_separate_ones(kind: str, how: str) -> None:
    """In float64, over three training forwards and one evaluation: outputs, gradients and estimates of each member alike."""
    torch.manual_seed(0)
    make, _, data = LAYERS[kind]
    alone = [Two(make()).double() for _ in range(3)]
    template = alone[0]
    blueprint = Blueprint(template)
    rows = torch.stack([blueprint.flatten_parameters(module) for module in alone]).requires_grad_()  # [N, P]
    buffers = {"layer.u": torch.stack([module.layer.u for module in alone]).clone()}
    for training in (True, True, True, False):
        for module in alone:
            module.train(training)
        x = data(3)
        if how == "lowered":
            lowered = lower(template)
            assert lowered is not None
            out, moved = lowered(blueprint.views(rows), buffers, lambda: torch.zeros(3, dtype=torch.int64), x)
        else:

            def call(p: dict[str, Tensor], b: dict[str, Tensor], v: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                b = {k: value.clone() for k, value in b.items()}
                return functional_call(template, {**p, **b}, (v,)), b

            out, moved = vmap(call)(blueprint.views(rows), buffers, x)
        (grads,) = torch.autograd.grad(out.square().sum(), rows)
        for i, module in enumerate(alone):
            if i == 0:  # its own buffer is also the template's
                module.layer.u.copy_(buffers["layer.u"][0])
            expected = module(x[i])
            assert torch.allclose(out[i], expected, rtol=0, atol=1e-12)
            own = torch.autograd.grad(expected.square().sum(), list(module.parameters()))
            assert torch.allclose(grads[i], torch.cat([g.reshape(-1) for g in own]), rtol=1e-9, atol=1e-10)
            assert torch.allclose(moved["layer.u"][i], module.layer.u, rtol=0, atol=1e-12)
        buffers = moved


def test_half_precision_does_not_reach_the_estimate() -> None:
    torch.manual_seed(0)
    weight, u = torch.randn(6, 9), nn.functional.normalize(torch.randn(6), dim=0)
    plain, moved = divide(weight, u, True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, moved_half = divide(weight, u, True)
    assert half.dtype == torch.float32 and torch.equal(plain, half) and torch.equal(moved, moved_half)
