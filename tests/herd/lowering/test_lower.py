"""Lowered modules give each member the same results as the module alone, whatever its forward does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from ganherd.herd.lowering.graph.trace import NotTraceable
from ganherd.herd.lowering.lower import FUSED, lower
from ganherd.herd.lowering.network import may_draw
from ganherd.herd.state import Blueprint


class Scaled(nn.Module):
    """Parameters of lower rank than the data: a number and a row."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.scale * x + self.shift - x.mean(1, keepdim=True)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        h = torch.relu(self.one(x))
        return torch.cat([x + self.two(h), h], dim=1)[:, 1:]


class Shapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x):
        x = x.view(x.size(0), 1, 1, -1)
        x = self.norm(self.conv(x))
        return x.permute(0, 2, 3, 1).flatten(1).unsqueeze(1).squeeze(1) / x.shape[1]


class ByName(nn.Module):
    """Everything is called with its arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv = nn.Upsample(scale_factor=2), nn.Conv2d(1, 2, 3, padding=1)
        self.norm, self.act, self.last = nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(12, 4)

    def forward(self, x):
        x = self.up(input=x.reshape(x.size(dim=0), 1, 1, 3))
        x = self.act(input=self.norm(input=self.conv(input=x)))
        x = torch.flatten(input=self.up(x), start_dim=2).narrow(dim=2, start=0, length=12)
        return torch.add(input=self.last(input=x[:, 0]), other=x[:, 1, :4], alpha=2)


class Indices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        return x[:, :, None][..., 0][:, -1:] * self.weight[None, 0] + self.weight[1:, ...].sum(0)


class Maxout(nn.Module):
    """Windows side by side, with a rest that fills none, and windows that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 11), nn.Linear(5, 9)

    def forward(self, x):
        x = self.two(F.max_pool1d(self.one(x), 2))
        return F.max_pool1d(x, 3, stride=3) + F.max_pool1d(x, 5, stride=2) + F.max_pool1d(x, kernel_size=3, padding=0)


class Shared(nn.Module):
    """Layers that share a weight, batch norms that share all that they learn, one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.same = nn.Linear(3, 3), nn.Linear(3, 3), nn.Bilinear(3, 3, 3)
        self.two.weight = self.one.weight
        self.also, self.other = self.same, nn.Bilinear(3, 3, 3)
        self.other.weight = self.same.weight
        self.norms = nn.ModuleList(nn.BatchNorm1d(3) for _ in range(2))
        first, second = self.norms
        first.bias = second.weight = second.bias = first.weight
        nn.init.normal_(first.weight)

    def forward(self, x):
        x = self.norms[1](self.two(torch.relu(self.norms[0](self.one(x)))))
        return self.other(self.also(x, self.same(x, x)), x)


class ChangesInPlace(nn.Module):
    """An upsampling whose input is changed in place before a convolution reads the result."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act = nn.Upsample(scale_factor=2), nn.ReLU(inplace=True)
        self.first, self.conv, self.other = nn.Linear(3, 4), nn.Conv2d(1, 2, 1), nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x):
        x = self.first(x).view(-1, 1, 2, 2)
        y = self.up(x)
        return self.other(self.up(self.act(x))) + self.conv(y)


class Counts(nn.Module):
    """Changes a buffer in place: cannot be lowered, and must not be."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1.0)
        return x * self.seen


class Branches(nn.Module):
    """Its flow depends on its input: cannot be traced."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("members", [2, 5])
@pytest.mark.parametrize("make", [Scaled, Residual, Shapes, ByName, Indices, Maxout, Shared, ChangesInPlace])
def test_lowered_members_equal_each_member_alone(make, members):
    torch.manual_seed(0)
    modules = [make().double() for _ in range(members)]
    blueprint = Blueprint(modules[0])
    rows = torch.stack([blueprint.flatten_parameters(module) for module in modules])
    buffers = {name: torch.stack([dict(m.named_buffers())[name] for m in modules]) for name in blueprint.buffers}
    x = torch.randn(members, 5, 3, dtype=torch.float64)  # five members and five samples: axes that could be mixed up
    lowered = lower(modules[0])
    assert lowered is not None
    keys = torch.zeros(members, dtype=torch.int64)
    out, moved = lowered(blueprint.views(rows), buffers, lambda: keys, x)
    for i, module in enumerate(modules):
        state = {**dict(module.named_parameters()), **{k: v.clone() for k, v in module.named_buffers()}}
        assert torch.allclose(out[i], functional_call(module, state, (x[i],)), atol=1e-12)
        for name in buffers:
            assert torch.allclose(moved[name][i].double(), state[name].double(), atol=1e-12), name


@pytest.mark.parametrize("make", [Counts, Branches])
def test_modules_that_cannot_be_lowered_run_through_vmap_or_the_loop(make):
    module = make()
    before = dict(vars(module))
    with pytest.raises(NotTraceable):
        lower(module)
    assert vars(module).keys() == before.keys()


class Calls(nn.Module):
    """A module that calls a function of its input."""

    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self._function = nn.Linear(3, 3), function

    def forward(self, x):
        return self.layer(self._function(x))


@pytest.mark.parametrize(
    "function",
    [F.dropout, torch.randn_like, lambda x: x + torch.randn(x.shape), lambda x: x.sum() > 0 and F.dropout(x), F.rrelu],
    ids=["dropout", "randn_like", "randn", "branch", "rrelu"],
)
def test_modules_that_draw_are_known(function):
    assert may_draw(Blueprint(Calls(function)))


def test_layers_that_draw_are_known_and_plain_ones_do_not():
    for layer in (nn.Dropout(), nn.Dropout2d(), nn.RReLU(), nn.AlphaDropout(), nn.TransformerEncoderLayer(4, 2)):
        assert may_draw(Blueprint(nn.Sequential(layer)))
    for function in (torch.tanh, lambda x: x.flatten(1).reshape(x.shape) * 2, F.leaky_relu):
        assert not may_draw(Blueprint(Calls(function)))
    assert not may_draw(Blueprint(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LeakyReLU(), nn.Flatten())))


class SharedParameters(nn.Module):
    """A bias that two layers share, a layer that is called twice, a parameter read in `forward`, and a layer used once."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.twice, self.once = (nn.Linear(3, 3) for _ in range(4))
        self.two.bias = self.one.bias

    def forward(self, x):
        return self.once(self.twice(self.twice(self.two(self.one(x))))) + self.once.bias


def test_parameters_with_a_single_use_are_known():
    """Only their gradients may be computed on another stream: PyTorch adds those of several uses without waiting."""
    assert lower(SharedParameters()).used_once == {"one.weight", "two.weight", "once.weight"}


def test_an_activation_whose_change_in_place_others_read_is_not_part_of_a_dropout():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.drop = nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.5)

        def forward(self, x):
            x = self.first(x)
            return self.drop(self.act(x)) + x

    methods = {op.layer: op.method for op in lower(Both()).explain()}
    assert methods["act"] != FUSED
    alone = {op.layer: op.method for op in lower(nn.Sequential(nn.Linear(3, 3), nn.ReLU(True), nn.Dropout())).explain()}
    assert alone["1"] == FUSED
