"""Whole nets run by fused kernels equal the same nets in plain PyTorch: values, gradients and buffers."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from ganherd.herd import rng
from ganherd.herd.lowering.kernels.adam_kernel import adam_triton_
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout, to_taps
from ganherd.herd.lowering.kernels.weight_cache import cache_weights
from ganherd.herd.lowering.lower import ALL_AT_ONCE, FUSED, KERNEL, lower
from ganherd.herd.state import Blueprint
from ganherd.nets.conditional import ConditionalGenerator
from ganherd.nets.gran import GranGenerator
from ganherd.nets.residual import ResidualDiscriminator, ResidualGenerator
from ganherd.nets.wcgan import WcganDiscriminator, WcganGenerator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


NETS = {
    "the critic of Table 2": (lambda: WcganDiscriminator((3, 8, 8), width=5), (3, 8, 8)),
    "the critic without batch norm": (lambda: WcganDiscriminator((3, 8, 8), width=3, batch_norm=False), (3, 8, 8)),
    "the generator of Table 1": (lambda: WcganGenerator((3, 4, 4), 7, width=10), (7,)),
    "transposed convolutions": (
        lambda: nn.Sequential(
            nn.Linear(7, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Unflatten(1, (2, 2, 2)),
            nn.ConvTranspose2d(2, 17, 4, 2, 1), nn.LeakyReLU(0.1), nn.Dropout(0.3), nn.BatchNorm2d(17),
            nn.ConvTranspose2d(17, 18, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(18, 3, 3, 1, 1), nn.Tanh(),
        ),
        (7,),
    ),
    "few channels before a batch norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 2, 3, padding=1), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.BatchNorm2d(2, momentum=None),
            nn.Conv2d(2, 20, 5, 2, 2), nn.BatchNorm2d(20, affine=False), nn.ReLU(), nn.Conv2d(20, 3, 3, padding=1),
            nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(27, 2),
        ),
        (3, 6, 6),
    ),
    "convolutions that are pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 18, 3, padding=1), nn.AvgPool2d(2), nn.BatchNorm2d(18), nn.ReLU(),
            nn.Conv2d(18, 17, 3, padding=1), nn.ReLU(), nn.Conv2d(17, 5, 3, padding=1, bias=False), nn.AvgPool2d(2, ceil_mode=True),
            nn.LeakyReLU(0.1), nn.Upsample(scale_factor=2), nn.Conv2d(5, 4, 3, padding=1), nn.AvgPool2d((2, 2)), nn.Flatten(),
        ),
        (3, 6, 10),
    ),
    "residual, spectral": (lambda: ResidualDiscriminator((3, 8, 8), width=5, attention=True), (3, 8, 8)),
    "plain, spectral": (lambda: ResidualDiscriminator((3, 8, 9), width=5, attention=True, body="plain"), (3, 8, 9)),
    "residual": (lambda: ResidualGenerator((3, 8, 8), 7, width=5), (7,)),
    "a canvas that is painted in steps": (lambda: GranGenerator((1, 12, 12), 7, width=5, steps=2), (7,)),
}  # fmt: skip


class GainsFromTheNoise(nn.Module):
    """Batch norms with a gain and a shift computed from the input, in the forms in which people write them."""

    def __init__(self, activation: bool = False, per_image: bool = True) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(7, 5 * 9), nn.ReLU()
        self.conv1, self.conv2 = nn.Conv2d(5, 18, 3, padding=1), nn.Conv2d(18, 3, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(5, affine=False), nn.BatchNorm2d(18, affine=False)
        self.style = nn.Linear(7, 2 * 5 + 2 * 18)
        self.between = nn.LeakyReLU(0.1) if activation else nn.Identity()
        self.gain = nn.Parameter(torch.rand(18, 1, 1))
        self.per_image = per_image

    def forward(self, z):
        style = self.style(z)
        x = self.norm1(self.first(z).view(-1, 5, 3, 3))
        x = self.act((1 + style[:, :5, None, None]) * x + style[:, 5:10, None, None])
        x = self.norm2(self.between(self.conv1(x)))
        gain = style[:, 10:28].view(-1, 18, 1, 1) if self.per_image else self.gain
        return self.conv2(torch.add(style[:, 28:].unsqueeze(2).unsqueeze(3), x * gain))


class Shortcuts(nn.Module):
    """Sums of images and of doubled ones, and halved images of odd and even sizes that have several readers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)
        self.up, self.pool, self.last = nn.Upsample(scale_factor=2), nn.AvgPool2d(2), nn.AvgPool2d(2, ceil_mode=True)

    def forward(self, x):
        half = self.pool(x)
        both = self.up(half) + self.up(self.pool(x))  # only one of them can be a part of the sum
        broadcast = self.up(half)[:, :1] + both
        return self.last(self.pool(self.conv2(self.conv1(broadcast).relu()) + self.up(self.conv1(half))))


class ChangesBeforeTheSum(nn.Module):
    """An input of an upsampling that is changed in place before the sum, and sums of other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.bias = nn.Upsample(scale_factor=2), nn.Parameter(torch.rand(3, 1, 1))
        self.body = nn.Sequential(nn.ReLU(inplace=True), nn.ConvTranspose2d(3, 3, 4, 2, 1))

    def forward(self, x):
        x = x * 2
        x = self.up(x) + self.body(x)
        x = self.bias + self.up(x)
        rows = x.flatten(2)
        return self.up(rows) + rows.repeat(1, 1, 2)


class FunctionsForLayers(nn.Module):
    """Activations, resizing, pooling, flattening and biases written as functions, some of whose results have two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.bias = nn.BatchNorm2d(5), nn.Parameter(torch.rand(18))
        self.conv1, self.conv2 = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 18, 3, padding=1, bias=False)
        self.skip, self.shift = nn.Conv2d(5, 18, 1, bias=False), nn.Parameter(torch.rand(18))
        self.last, self.linear = nn.Conv2d(18, 4, 3, padding=1), nn.Linear(4 * 3 * 2, 2)

    def forward(self, x):
        h = F.leaky_relu(self.norm(self.conv1(x)), 0.1, inplace=True)
        h = F.interpolate(F.avg_pool2d(h, 2), scale_factor=2)
        y = F.leaky_relu(self.conv2(h) + self.bias.view(1, -1, 1, 1), negative_slope=0.2)
        y = y + (self.shift.reshape((1, -1, 1, 1)) + self.skip(F.interpolate(F.avg_pool2d(h, 2), scale_factor=2.0)))
        y = F.interpolate(y.relu(), scale_factor=0.5, mode="bilinear", align_corners=False)
        y = F.relu(self.last(F.interpolate(y, scale_factor=(2, 2), mode="bilinear")))
        y = F.avg_pool2d(input=y, kernel_size=(2, 2)) + F.interpolate(y, size=(3, 2), mode="bilinear")
        return self.linear(y.flatten(1)) + self.linear(torch.flatten(y.relu(), start_dim=1))


class OneImage(nn.Module):
    """A convolution of a single image, to which a bias is added that makes a batch of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bias = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Parameter(torch.rand(4))

    def forward(self, x):
        return self.conv(x[0]) + self.bias.view(1, -1, 1, 1)


class ChangesInPlace(nn.Module):
    """Functions that change a tensor in place before a result that was computed from it is read, or that others read, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 5, 3, padding=1), nn.Dropout(0.3)
        self.one, self.two = nn.Conv2d(5, 4, 1), nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x):
        x = self.conv(x)
        y = F.interpolate(x, scale_factor=2)
        x = F.relu(x, inplace=True)
        y = self.one(y) + self.two(F.interpolate(x, scale_factor=[2, 2]))
        h = torch.relu(y)
        y = F.hardtanh(y, -0.3, 0.3, True)
        z = self.drop(h) + y
        return self.drop(F.relu(z, inplace=True)) + z


class InDoublePrecision(nn.Module):
    """Layers that compute in float64 within a net in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.up = nn.Linear(7, 24), nn.ConvTranspose2d(6, 3, 4, 2, 1)

    def forward(self, z):
        h = F.linear(z.double(), self.linear.weight.double(), self.linear.bias.double())
        images = h.view(-1, 6, 2, 2)
        out = F.conv_transpose2d(images, self.up.weight.double(), self.up.bias.double(), stride=2, padding=1)
        return out.to(z.dtype)


def before_a_pooled_point(*before: nn.Module) -> nn.Sequential:
    """A 1x1 convolution that is pooled, after layers that leave it something to compute."""
    return nn.Sequential(nn.Conv2d(3, 18, 3, padding=1), *before, nn.Conv2d(18, 5, 1), nn.AvgPool2d(2))


NETS |= {
    "functions for layers": (FunctionsForLayers, (3, 6, 4)),
    "one image": (OneImage, (3, 4, 6)),
    "changes in place": (ChangesInPlace, (3, 4, 3)),
    "a pooled 1x1 after a batch norm": (lambda: before_a_pooled_point(nn.BatchNorm2d(18), nn.ReLU()), (3, 4, 6)),
    "a pooled 1x1 after an activation": (lambda: before_a_pooled_point(nn.ReLU(), nn.Dropout(0.3)), (3, 4, 6)),
    "sequences after a linear layer": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 18, 3, padding=1), nn.BatchNorm2d(18), nn.ReLU(), nn.Flatten(), nn.Linear(18 * 24, 12),
            nn.LeakyReLU(0.1), nn.Unflatten(1, (3, 4)),
        ),
        (3, 4, 6),
    ),
    "sequences after an activation": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 18, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(18 * 24, 12), nn.Unflatten(1, (3, 4))
        ),
        (3, 4, 6),
    ),
    "images of a linear layer before a batch norm": (
        lambda: nn.Sequential(
            nn.Linear(7, 72), nn.Unflatten(1, (18, 2, 2)), nn.BatchNorm2d(18), nn.ReLU(True),
            nn.ConvTranspose2d(18, 4, 4, 2, 1), nn.Tanh(),
        ),
        (7,),
    ),
    "in double precision": (InDoublePrecision, (7,)),
    "a negative slope": (
        lambda: nn.Sequential(nn.Conv2d(3, 18, 3, padding=1), nn.LeakyReLU(-0.5), nn.Conv2d(18, 4, 3, padding=1)),
        (3, 4, 6),
    ),
    "changes before the sum": (ChangesBeforeTheSum, (3, 2, 4)),
    "shortcuts": (Shortcuts, (3, 6, 10)),
    "gains of each image": (GainsFromTheNoise, (7,)),
    "gains of each image after an activation": (lambda: GainsFromTheNoise(activation=True), (7,)),
    "a gain of all images": (lambda: GainsFromTheNoise(per_image=False), (7,)),
}  # fmt: skip


@pytest.mark.further(
    "the critic without batch norm",
    "few channels before a batch norm",
    "plain, spectral",
    "residual",
    "a canvas that is painted in steps",
)
@pytest.mark.parametrize("name", NETS)
def test_a_net_run_by_kernels_equals_the_plain_net(name, monkeypatch):
    monkeypatch.setattr(rng, "draw", rng._hashed)  # the CPU draws otherwise than a GPU; here both the same
    torch.manual_seed(0)
    make, shape = NETS[name]
    modules = [make() for _ in range(2)]
    net = Blueprint(modules[0])
    rows = torch.stack([net.flatten_parameters(module) for module in modules])
    rows += 0.1 * torch.randn(rows.shape)
    kinds = {key: dict(modules[0].named_buffers())[key] for key in net.buffers}
    x = torch.randn(2, 4, *shape)
    keys = torch.from_numpy(rng.keys(rng.np.arange(2), 3)).to(DEVICE)
    results = []
    for operations, dtype in (("plain", torch.float64), ("triton", torch.float32)):
        lowered = lower(modules[0], operations)
        own, given = (value.to(DEVICE, dtype).requires_grad_() for value in (rows, x))
        before = {
            key: torch.stack([value, value]).to(DEVICE, dtype if value.is_floating_point() else value.dtype)
            for key, value in kinds.items()
        }
        out, moved = lowered(net.views(own), before, lambda: keys, given)
        weights = torch.arange(out.numel(), device=DEVICE).view(out.shape) % 7 - 3.0
        (out * weights.to(dtype)).sum().backward()
        results.append([out, own.grad, given.grad, *(moved[key] for key in sorted(moved))])
    for ours, theirs in zip(results[1], results[0], strict=True):
        gap = (ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-6)
        assert gap < 2e-5, float(gap)


def test_pooling_and_activations_of_a_residual_block_are_fused_into_convolutions():
    by_name = {op.layer: op.method for op in lower(ResidualDiscriminator((3, 32, 32)), "triton").explain()}
    assert {by_name[f"body.blocks.{block}.{layer}"] for block in range(3) for layer in ("act2", "pool1")} == {FUSED}
    assert by_name["body.blocks.0.pool2"] == KERNEL  # separately, because its input has another reader


def test_functions_that_do_the_same_as_a_layer_run_by_the_kernels_of_layers():
    operations = lower(FunctionsForLayers(), "triton").explain()
    by_kind = {
        op.operation: [other.method for other in operations if other.operation == op.operation] for op in operations
    }
    assert by_kind["Upsample"] == [KERNEL, FUSED, KERNEL] and by_kind["Conv2d"] == [KERNEL] * 4
    assert by_kind["Flatten"] == [FUSED, FUSED]
    assert by_kind["interpolate"] == [ALL_AT_ONCE]  # a size is no factor
    assert len(by_kind["add"]) == 3  # two more became biases
    assert "view" not in by_kind and "reshape" not in by_kind


@pytest.mark.parametrize(
    ("features", "shape", "method"),
    [(6, (2, 3), KERNEL), (8, (2, 4), ALL_AT_ONCE), (8, (2, 2, 2), KERNEL)],
    ids=["rows of a size for the kernel", "rows of a size for the batched product", "images"],
)
def test_a_linear_layer_before_an_unflattening_is_explained_as_it_runs(
    features: int, shape: tuple[int, ...], method: str
):
    operations = lower(nn.Sequential(nn.Linear(8, features), nn.Unflatten(1, shape)), "triton").explain(batch=4)
    assert [op.method for op in operations] == [method, FUSED]


def test_the_sum_at_the_end_of_a_residual_block_also_doubles_its_shortcut():
    operations = lower(ResidualGenerator((3, 32, 32), 8), "triton").explain()
    assert {op.method for op in operations if op.layer.endswith("up2")} == {FUSED}
    assert [op.method for op in operations if op.operation == "add"] == [KERNEL] * 3


def test_a_conditional_generator_normalises_and_activates_in_one_kernel():
    operations = lower(ConditionalGenerator((3, 32, 32), 8, 10), "triton").explain()
    by_name = {op.layer: op.method for op in operations}
    assert {by_name[f"blocks.{block}.norm1.norm"] for block in range(3)} == {FUSED}
    assert {by_name[f"blocks.{block}.act2"] for block in range(3)} == {FUSED}
    assert [op.method for op in operations if op.operation == "add"] == [
        KERNEL
    ] * 9  # two norms and a sum in each block


@pytest.mark.further
def test_a_conditional_generator_run_by_kernels_equals_the_plain_one():
    torch.manual_seed(0)
    module = ConditionalGenerator((3, 8, 8), 7, 3, width=5)
    net = Blueprint(module)
    rows = torch.stack([net.flatten_parameters(module)] * 2)
    rows += 0.1 * torch.randn(rows.shape)
    z, y = torch.randn(2, 6, 7), torch.tensor([[0, 2, 1, 1, 0, 0], [1, 1, 2, 0, 2, 2]], device=DEVICE)
    buffers, results = dict(module.named_buffers()), []
    for operations, dtype in (("plain", torch.float64), ("triton", torch.float32)):
        own, given = (value.to(DEVICE, dtype).requires_grad_() for value in (rows, z))
        before = {
            key: torch.stack([value, value]).to(DEVICE, dtype if value.is_floating_point() else value.dtype)
            for key, value in buffers.items()
        }
        out, moved = lower(module, operations)(net.views(own), before, lambda: None, given, y)
        (out * (torch.arange(out.numel(), device=DEVICE).view(out.shape) % 7 - 3.0).to(dtype)).sum().backward()
        results.append([out, own.grad, given.grad, *(moved[key] for key in sorted(moved))])
    for ours, theirs in zip(results[1], results[0], strict=True):
        gap = (ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-6)
        assert gap < 2e-5, float(gap)


def test_activations_and_dropouts_of_a_critic_are_fused_into_convolutions():
    by_name = {op.layer: op.method for op in lower(WcganDiscriminator((3, 32, 32)), "triton").explain()}
    assert sum(how == FUSED for how in by_name.values()) == 9  # four activations, four dropouts, the flattening


def test_double_backward_has_no_fused_epilogues_and_plain_batch_norm():
    found = lower(WcganDiscriminator((3, 32, 32)), "triton", double_backward=True).explain()
    by_kind = {
        kind: {op.method for op in found if op.operation == kind} for kind in ("Conv2d", "Dropout", "BatchNorm2d")
    }
    assert by_kind == {"Conv2d": {KERNEL}, "Dropout": {KERNEL}, "BatchNorm2d": {ALL_AT_ONCE}}


def test_converted_weights_are_cached_until_they_change():
    weight = torch.randn(2, 5, 4, 3, 3, device=DEVICE)
    first = to_taps(weight, WeightLayout(3), torch.float32)
    with cache_weights():
        kept = to_taps(weight, WeightLayout(3), torch.float32)
        assert to_taps(weight, WeightLayout(3), torch.float32) is kept
        assert to_taps(weight[:1], WeightLayout(3), torch.float32) is not kept
        state = [weight.flatten(1), *(torch.ones(2, 180, device=DEVICE) for _ in range(3))]
        numbers = [torch.tensor([value, value], dtype=torch.float64, device=DEVICE) for value in (0.1, 0.5, 0.9)]
        adam_triton_(state[0], state[1:2], *state[2:], torch.ones(2, dtype=torch.int64, device=DEVICE), *numbers, 1e-8)
        assert not torch.equal(to_taps(weight, WeightLayout(3), torch.float32), kept)
    assert torch.equal(kept, first)
    assert to_taps(weight, WeightLayout(3), torch.float32) is not to_taps(weight, WeightLayout(3), torch.float32)
