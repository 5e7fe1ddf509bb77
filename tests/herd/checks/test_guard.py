"""The guard detects every engine whose results differ from plain PyTorch."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd.checks import guard
from ganherd.herd.checks.agreement import compare
from ganherd.herd.checks.trial import SMALL_EXTENT, ComparisonTask
from ganherd.herd.lowering.network import member_call
from ganherd.herd.state import Blueprint, ModuleTraits, new_state
from ganherd.util.errors import UserError

SHAPE, LATENT, CLASSES = (1, 4, 4), 3, 3


class Net(nn.Module):
    """A discriminator with a place to do something unusual in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(math.prod(SHAPE), 6), nn.Linear(6, 1)
        self.unusual()

    def unusual(self) -> None:
        pass

    def middle(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(torch.tanh(self.first(x.flatten(1)))))


def net(
    unusual: Callable[[Net], None] = lambda self: None, middle: Callable[[Net, Tensor], Tensor] = lambda self, h: h
):
    """A class of nets that do this when they are made, and this in their forward."""
    return type("Own", (Net,), {"unusual": unusual, "middle": middle})


def task(make: Callable[[], nn.Module], role: str = "discriminator", **more: bool) -> ComparisonTask:
    return ComparisonTask(role, "own", make, SHAPE, LATENT, CLASSES, **more)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -grad


def with_no_grad(self: Net, h: Tensor) -> Tensor:
    with torch.no_grad():
        scale = h.std(0) + 0.5
    return h / scale


def counter(self: Net) -> None:
    self.register_buffer("count", torch.zeros(()))
    self.calls = 0


def counted(self: Net, h: Tensor) -> Tensor:
    self.count += 1
    return h


def counted_and_read(self: Net, h: Tensor) -> Tensor:
    self.count += 1
    return h * self.count


def python_count(self: Net, h: Tensor) -> Tensor:
    self.calls += 1
    return h * self.calls


def norm(self: Net) -> None:
    self.norm = nn.BatchNorm1d(6)


def still_norm(self: Net) -> None:
    norm(self)
    self.norm.eval()


def replaced(self: Net) -> None:
    forward = self.first.forward
    self.first.forward = lambda x: 2 * forward(x)


def label_table(padding: int | None) -> Callable[[Net], None]:
    def unusual(self: Net) -> None:
        self.table = nn.Embedding(2, 6, padding_idx=padding)

    return unusual


def looked_up(self: Net, h: Tensor) -> Tensor:
    return h + self.table((h[:, 0] > 0).long())


# what a module does -> (the module, what a careless engine makes of it, what the guard names)
CARELESS = {
    "frozen parameters are trained": (net(lambda self: self.first.requires_grad_(False)), net(), "gradient of first.weight"),
    "no_grad is ignored": (
        net(middle=with_no_grad),
        net(middle=lambda self, h: h / (h.std(0) + 0.5)),
        "gradient of first.weight",
    ),
    "the backward of an own function is ignored": (
        net(middle=lambda self, h: Reversed.apply(h)),
        net(),
        "gradient of first.weight",
    ),
    "a forward hook is ignored": (
        net(lambda self: self.first.register_forward_hook(lambda m, a, out: 2 * out)), net(), "output"
    ),
    "a forward pre-hook is ignored": (
        net(lambda self: self.first.register_forward_pre_hook(lambda m, a: (2 * a[0],))), net(), "output"
    ),
    "a backward hook is ignored": (
        net(lambda self: self.last.register_full_backward_hook(lambda m, given, out: (2 * given[0],))),
        net(),
        "gradient of first.weight",
    ),
    "a gradient hook is ignored": (
        net(lambda self: self.first.weight.register_hook(lambda g: 0 * g)), net(), "gradient of first.weight"
    ),
    "a buffer stands still": (net(counter, counted), net(counter), "value of count"),
    "a buffer that is read stands still": (
        net(counter, counted_and_read), net(counter, lambda self, h: h * (self.count + 1)), "output"
    ),
    "a drawn number is a constant": (
        net(middle=lambda self, h: h * torch.rand(1).item()), net(middle=lambda self, h: h * 0.3), "output"
    ),
    "draws come from another stream": (
        net(middle=lambda self, h: h + torch.randn_like(h)),
        net(middle=lambda self, h: h + 0 * torch.randn_like(h) + torch.randn_like(h)),
        "output",
    ),
    "the padding row is trained": (
        net(label_table(0), looked_up),
        net(lambda self: (label_table(0)(self), setattr(self.table, "padding_idx", None))[1], looked_up),
        "gradient of table.weight",
    ),
    "members share Python state": (net(counter, python_count), net(counter, python_count), "output"),
    "a replaced forward is ignored": (net(replaced), net(), "output"),
    "a norm in eval mode is trained": (
        net(still_norm, lambda self, h: self.norm(h)), net(norm, lambda self, h: self.norm(h)), "output"
    ),
    "a parameter is left out of training": (
        net(), net(middle=lambda self, h: h + (self.last.weight - self.last.weight.detach())), "gradient of last.weight"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CARELESS)
def test_guard_detects_and_names_every_engine_error(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, careless, named = CARELESS[mistake]

    def mistaken(make_g, make_d, *more, **settings):
        return new_state(make_g, careless, *more, **settings)

    monkeypatch.setattr(guard, "new_state", mistaken)
    report = guard.check(task(own))
    for engine in guard.ENGINES:
        assert named in report.results[engine].why, report


@pytest.mark.parametrize("role", ["generator", "discriminator"])
def test_guard_detects_mixed_up_rows(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixing(self, state, *more, **options):
        real(self, state, *more, **options)
        state[f"{role[0]}.params"].copy_(state[f"{role[0]}.params"].flip(0))

    from ganherd.herd.step.step import Step

    real = Step.__call__
    monkeypatch.setattr(Step, "__call__", mixing)
    make = Net if role == "discriminator" else Painter
    report = guard.check(task(make, role))
    assert "value of" in report.results["fused"].why and not report.results["loop"].why  # of one member, nothing mixes


class Painter(nn.Module):
    """A generator that draws, normalises and takes the label."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.table = nn.Linear(LATENT, 6), nn.BatchNorm1d(6), nn.Embedding(CLASSES, 6)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(6, math.prod(SHAPE))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.norm(self.first(z)) + self.table(y)))
        return torch.tanh(self.last(h + 0.1 * torch.randn_like(h))).unflatten(1, SHAPE)


class Classifier(Net):
    """A discriminator that also says which class it sees."""

    def unusual(self) -> None:
        self.classes = nn.Linear(math.prod(SHAPE), CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.classes(x.flatten(1))


@pytest.mark.parametrize(
    "sound",
    [
        task(Painter, "generator"),
        task(Net),
        task(Net, penalty=True),
        task(Net, r1=True),
        task(Classifier, penalty=True),
    ],
)
def test_a_sound_net_passes_with_every_engine(sound: ComparisonTask) -> None:
    report = guard.check(sound)
    assert set(report.results) == {"loop", "fused"}
    for result in report.results.values():
        assert not result.why and result.difference < 1e-9


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_guard_detects_draws_outside_of_the_members_stream(draw: Callable[[], float]) -> None:
    assert guard.check(task(net(middle=lambda self, h: h * draw()))).results["loop"].why


def test_guard_detects_initial_weights_that_ignore_the_seed() -> None:
    built = iter(range(1, 100))

    def drawn(self: Net) -> None:
        nn.init.constant_(self.first.bias, next(built))

    report = guard.check(task(net(drawn)))
    assert "the initial value of first.bias differs" in report.results["loop"].why


def test_a_net_that_plain_pytorch_cannot_train_is_refused_in_one_sentence() -> None:
    def broken(self: Net, h: Tensor) -> Tensor:
        h += 1  # the output of tanh, which its gradient needs
        return h

    with pytest.raises(UserError, match="discriminator own cannot be trained by plain PyTorch: RuntimeError"):
        guard.check(task(net(middle=broken)))


def test_a_net_without_second_derivatives_is_told_of_the_penalty_that_needs_them() -> None:
    def attention(self: Net, h: Tensor) -> Tensor:
        rows = h.view(-1, 2, 3)[:, None]
        return h + F.scaled_dot_product_attention(rows, rows, rows).flatten(1)

    plain = ComparisonTask("discriminator", "own", net(middle=attention), SHAPE, LATENT, CLASSES)
    assert not guard.check(plain).results["fused"].why
    with pytest.raises(UserError, match="is not implemented.* needs second derivatives: use a loss without one"):
        guard.check(replace(plain, penalty=True))


@pytest.mark.parametrize("group", [2, 4, 8, 16])
def test_guard_accepts_a_net_that_compares_groups_of_samples(group: int) -> None:
    def deviation(self: Net, h: Tensor) -> Tensor:
        return h + h.reshape(group, -1, 6).std(0).repeat(group, 1)

    report = guard.check(
        ComparisonTask("discriminator", "own", net(middle=deviation), SHAPE, LATENT, CLASSES, batch=32)
    )
    assert not any(result.why for result in report.results.values())
    assert f"batch {4 if group <= 4 else 32}" in report.extent


@pytest.mark.parametrize("side", ["checks.plain_pytorch.PlainGan.step", "step.step.Step.__call__"])
def test_running_out_of_memory_is_reported_as_such_and_not_as_a_difference(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(f"ganherd.herd.{side}", fails)
    with pytest.raises(UserError, match=r"not enough memory to compare the discriminator own .*Free memory"):
        guard.check(task(Net))


def test_an_engine_that_fails_is_reported_as_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_, **__):
        raise RuntimeError("no way. At all")

    monkeypatch.setattr("ganherd.herd.step.step.Step.__call__", fails)
    results = guard.check(task(Net)).results
    for one in results.values():
        assert one.failed and math.isnan(one.difference)
        assert re.fullmatch(r"it fails: no way; test_guard\.py, line \d+", one.why)


def test_a_net_with_fixed_float32_tensors_is_compared_in_float32() -> None:
    report = guard.check(task(net(middle=lambda self, h: self.last.weight.new_ones(()).float() * h.float())))
    assert "float32" in report.extent and not any(one.why for one in report.results.values())


def test_an_expensive_net_gets_the_smaller_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_EXPENSIVE", 100)
    report = guard.check(task(net(lambda self: self.first.weight.register_hook(lambda g: 0 * g))))
    assert report.extent == SMALL_EXTENT.describe(torch.float64) == "2 members, batch 4, 1 step, float64"
    assert set(report.results) == set(guard.ENGINES)


def test_a_module_that_divides_by_a_buffer_it_changes_is_compared_too() -> None:
    """Plain PyTorch trains it if each forward pass has its own backward pass."""
    moved = net(counter, lambda self, h: h / self.count.add_(1))
    report = guard.check(task(moved))
    assert not report.results["loop"].why


def test_operations_that_vmap_runs_member_by_member_are_named_and_not_warned_about() -> None:
    def middle(self: Net, h: Tensor) -> Tensor:
        return h + 0 * self.count.lerp_(h.detach().mean(), 0.1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = guard.check(task(net(counter, middle)))
    assert report.slow == ("lerp_",)


def test_guard_restores_all_global_random_generators() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    guard.check(task(Painter, "generator"))
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_tensors_are_compared_relative_to_their_own_magnitude() -> None:
    def one(value: list[float]) -> dict:
        return {("d", "gradient", "large"): torch.tensor([1.0]), ("d", "gradient", "w"): torch.tensor(value)}

    def differs(a: list[float], b: list[float]) -> bool:
        return bool(compare(one(a), one(b), "d", torch.float64).why)

    assert differs([1e-6, 0.0], [2e-6, 0.0])  # small gradients count
    assert not differs([1e-6, 0.0], [1e-6 + 1e-15, 1e-17])
    assert not differs([math.nan, math.inf], [math.nan, math.inf])
    assert differs([math.nan], [0.0]) and differs([math.inf], [-math.inf])
    assert not compare(one([0.0]), {("d", "gradient", "large"): torch.tensor([1.0])}, "d", torch.float64).why
    assert compare({("d", "value", "w"): torch.ones(1)}, {}, "d", torch.float64).why  # a tensor that is not there


def test_attributes_are_restored_when_a_forward_pass_fails() -> None:
    def fails(self: Net, h: Tensor) -> Tensor:
        self.seen = h
        raise ValueError("no")

    blueprint = Blueprint(net(middle=fails)())
    blueprint.adopt(ModuleTraits((("", "seen"),), ""))
    params = {name: value.detach() for name, value in blueprint.module.named_parameters()}
    with pytest.raises(ValueError, match="no"):
        member_call(blueprint, params, {}, torch.tensor(0), torch.zeros(2, *SHAPE))
    assert not hasattr(blueprint.module, "seen")
