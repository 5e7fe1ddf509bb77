"""Compare every engine with plain PyTorch on a small batch, so that no engine trains a net wrongly without a word.

The comparison does not depend on a list of what engines support. It trains the net on a CPU in float64, once as real module
instances with PyTorch's Adam (see `reference`) and once with each engine, from the same weights, data and random streams. After
every step all outputs, gradients, parameters and buffers must agree. The net trains against a trivial partner, so that a
difference is the net's own.

It covers what an engine makes of a module. It does not cover the GPU's kernels, which the tests compare with plain PyTorch,
and it cannot see what a module does only after more steps than the comparison has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.data.feed import Feed
from ganherd.errors import UserError
from ganherd.herd import streams
from ganherd.herd.agreement import Agreement, compare
from ganherd.herd.breeds import Breeds
from ganherd.herd.engine import Engine, Herd, Plan
from ganherd.herd.reference import PlainGan, Settings, Snapshot
from ganherd.herd.rules import Rules
from ganherd.herd.state import Seat, State, buffers_of, new_state, seeded, takes_label
from ganherd.herd.step import SUMS
from ganherd.losses import Game

ENGINES = ("loop", "fused")  # `graph` runs the same lowered net as `fused`
_SEATS = (Seat(0, 0), Seat(0, 1))
_EXPENSIVE = 2e7  # floating-point operations of a net on one sample, above which the smaller comparison is made

History = list[list[Snapshot]]  # by member: at the start, and after each step


@dataclass(frozen=True)
class Task:
    """A net to check, and what it is trained on."""

    role: str  # generator or discriminator
    name: str  # as the recipe names the net
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one sample
    latent: int
    classes: int
    penalty: bool = False  # the loss differentiates the discriminator twice, between real and fake samples …
    r1: bool = False  # … or at real ones

    @property
    def kind(self) -> str:
        return self.role[0]

    def pair(self) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Functions that make the net and its trivial partner: (generator, discriminator)."""
        if self.kind == "g":
            return self.make, lambda: _Judge(self.shape)
        return lambda: _Painter(self.shape), self.make


@dataclass(frozen=True)
class Extent:
    """How much is computed: samples in a batch, steps, and how often an engine repeats them from the same start."""

    batch: int = 3
    steps: int = 2
    passes: int = 2

    def describe(self, dtype: torch.dtype) -> str:
        steps = f"{self.steps} step{'s' * (self.steps > 1)}"
        return f"{len(_SEATS)} members, batch {self.batch}, {steps}, {str(dtype).removeprefix('torch.')}"


SMALL = Extent(batch=2, steps=1, passes=1)


@dataclass(frozen=True)
class Report:
    """What the guard found out about one net."""

    extent: str
    results: dict[str, Agreement]  # by engine


class _PlainFailure(Exception):
    """Plain PyTorch itself cannot train the net."""


def check(task: Task, extent: Extent | None = None) -> Report:
    """Train the net plainly and with each engine, and compare.

    Args:
        extent: how much to compute; by default less for a net that is expensive on a CPU.

    Raises:
        UserError: if plain PyTorch cannot train the net either.
    """
    extent = extent or (SMALL if _operations(task) > _EXPENSIVE else Extent())
    dtype, plain = _reference(task, extent)
    results = {name: _result(task, extent, dtype, name, plain) for name in ENGINES}
    return Report(extent.describe(dtype), results)


def likely_cause(task: Task) -> str:
    """Say why even `loop` may differ from plain PyTorch, as far as the module shows it."""
    dtype, first = _reference(task, SMALL)
    second = _plain(task, SMALL, dtype, seed=9)
    pairs = ((a, b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True))
    if any(compare(a, b, task.kind, dtype).why for a, b in pairs):
        return (
            "it draws random numbers outside of the member's stream, so plain PyTorch does not repeat its own numbers either: "
            "draw them with torch.rand, torch.randn or dropout"
        )
    with _unrelated_random_numbers(9):
        module = task.make()
        hooked = [name for name, parameter in module.named_parameters() if parameter._backward_hooks]
        before = _python_state(module)
        _call(module, task)
        changed = sorted(name for name, value in _python_state(module).items() if value != before.get(name))
    if changed:
        return f"its forward changes the Python attribute {changed[0]}, which members share: make it a buffer"
    if hooked:
        return f"its parameter {hooked[0]} has a gradient hook: scale the gradient in forward, or freeze the parameter"
    return "Python state that forward changes, or random numbers outside of the member's stream"


# -- the two sides of the comparison ----------------------------------------------------------------------------------


def _reference(task: Task, extent: Extent) -> tuple[torch.dtype, History]:
    """Train plainly in float64, or in float32 if the module has tensors that only fit that."""
    for dtype in (torch.float64, torch.float32):
        try:
            return dtype, _plain(task, extent, dtype)
        except _PlainFailure as error:
            failure = str(error)
    raise UserError(f"The {task.role} {task.name} cannot be trained by plain PyTorch: {failure}. Correct the module.")


def _plain(task: Task, extent: Extent, dtype: torch.dtype, seed: int = 0) -> History:
    """Train real module instances, one member after another."""
    rules, feed, found = _rules(task, extent), _feed(task, extent, dtype), []
    try:
        with _unrelated_random_numbers(seed):
            for row, seat in enumerate(_SEATS):
                keys = (streams.key(seat.base(), purpose) for purpose in (streams.INIT_G, streams.INIT_D))
                g, d = (_trained(seeded(make, key).to(dtype)) for make, key in zip(task.pair(), keys, strict=True))
                gan = PlainGan(g, d, row, np.array([seat.base()]), rules, feed, Settings())
                found.append([gan.snapshot()])
                for step in range(extent.steps):
                    gan.step(step)
                    found[-1].append(gan.snapshot())
    except UserError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise _PlainFailure(_one_line(error)) from error
    return found


def _trained(module: nn.Module) -> nn.Module:
    """The module in training mode: a new one is, unless a class of it has its own `train()`."""
    overridden = any(type(layer).train is not nn.Module.train for layer in module.modules())
    return module.train() if overridden else module


def _result(task: Task, extent: Extent, dtype: torch.dtype, name: str, plain: History) -> Agreement:
    """Train with one engine, as often as the extent says, always from the same start."""
    try:
        with _unrelated_random_numbers(1):
            herd = _herd(task, extent, dtype)
            start = {key: value.clone() for key, value in herd.state.items()}
            engine = Engine(herd, Plan(name, len(_SEATS), 1, "cpu"))
        worst = Agreement(0.0)
        for number in range(extent.passes):
            with _unrelated_random_numbers(2 + number):
                worst = max(worst, _one_pass(engine, start, plain, task.kind, dtype), key=lambda one: one.difference)
            if worst.why:
                break
        return worst
    except Exception as error:  # whatever stops the engine: it cannot be used for this net
        return Agreement(math.nan, f"it fails: {_one_line(error)}")


def _one_pass(engine: Engine, start: State, plain: History, net: str, dtype: torch.dtype) -> Agreement:
    """Train with the engine up to the first step after which it differs from plain PyTorch."""
    herd, worst = engine.herd, Agreement(0.0)
    for name, value in herd.state.items():
        value.copy_(start[name])
    for step in range(len(plain[0])):
        sums = herd.no_sums()
        if step:
            engine.advance(step - 1, step, sums)
        for row, snapshots in enumerate(plain):
            there = _snapshot(herd, sums if step else None, row)
            found = compare(snapshots[step], there, net, dtype, "" if step else "initial")
            worst = max(worst, found, key=lambda one: one.difference)
        if worst.why:
            break
    return worst


def _snapshot(herd: Herd, sums: Tensor | None, row: int) -> Snapshot:
    """The same as `PlainGan.snapshot`, of one member of an engine's herd; `sums`: of its last step, if it made one."""
    out: Snapshot = {}
    for kind, net in (("g", herd.g), ("d", herd.d)):
        named = {**net.views(herd.state[f"{kind}.params"]), **buffers_of(herd.state, kind)}
        out |= {(kind, "value", name): value[row] for name, value in named.items()}
        if sums is not None:
            gradients = net.views(herd.state[f"{kind}.adam.m"])  # beta1 is zero: of the last update alone
            out |= {(kind, "gradient", name): value[row] for name, value in gradients.items()}
    if sums is not None:
        out |= {("", "output", name): sums[number, row] for number, name in enumerate(SUMS)}
    return out


# -- what both sides share --------------------------------------------------------------------------------------------


def _herd(task: Task, extent: Extent, dtype: torch.dtype) -> Herd:
    adam, make_g, make_d = Settings(), *task.pair()
    both = [1.0] * len(_SEATS)
    settings = {
        "lr_g": [adam.lr * one for one in both],
        "lr_d": [adam.lr * one for one in both],
        "beta1": [adam.beta1 * one for one in both],
        "beta2": [adam.beta2 * one for one in both],
    }
    g, d, state = new_state(make_g, make_d, _SEATS, {**settings, "loss": [0] * len(_SEATS)}, dtype, ema=False)
    feed = _feed(task, extent, dtype)
    return Herd(Breeds([("net", g, len(_SEATS))]), d, state, _rules(task, extent), feed, torch.device("cpu"))


def _rules(task: Task, extent: Extent) -> Rules:
    """A step with one update of each net, and a smooth loss that differentiates twice if the recipe's does."""
    game = Game(("wasserstein-gp" if task.penalty else "non-saturating",))
    return Rules(
        game, extent.batch, task.latent, eps=Settings().eps, gp_weight=1.0, r1=float(task.r1), precision="float64"
    )


def _feed(task: Task, extent: Extent, dtype: torch.dtype) -> Feed:
    """Random samples in [-1, 1) of each member, with labels that spread over all classes."""
    each = extent.batch * extent.steps
    rows = each * len(_SEATS)
    x = streams.draw(np.array([streams.key(0, streams.ORDER)]), (rows, *task.shape), "uniform", dtype)[0] * 2.0 - 1.0
    last = max(task.classes - 1, 0)
    y = torch.arange(rows) % (last + 1) if last < rows else torch.linspace(0, last, rows).round().long()
    index = np.arange(rows).reshape(len(_SEATS), each)
    return Feed(x, y, index, np.full(len(_SEATS), each), extent.batch, 0.0, 1.0, dtype)


class _Judge(nn.Module):
    """A discriminator that sees every number of a generator's samples."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(math.prod(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x.flatten(1)) * self.weight).sum(1)


class _Painter(nn.Module):
    """A generator whose samples differ in every number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.weight, self.bias = (nn.Parameter(torch.randn(math.prod(shape))) for _ in range(2))

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z[:, :1] * self.weight + self.bias).unflatten(1, self.shape)


@contextmanager
def _unrelated_random_numbers(seed: int) -> Iterator[None]:
    """Seed every global generator, and restore it: both sides differ if a net draws from one of them."""
    before, before_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before), np.random.set_state(before_numpy)


def _operations(task: Task) -> float:
    """Estimate the floating-point operations of the net on one sample; 0 if it does not run, which `_plain` reports."""
    counted: list[float] = []

    def count(layer: nn.Module, given: object, output: object) -> None:
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.dim() > 1]
        if own and isinstance(output, Tensor) and len(output):
            counted.append(2.0 * sum(p.numel() * output[0].numel() / p.shape[0] for p in own))

    with _unrelated_random_numbers(0), torch.no_grad():
        try:
            module = task.make()
            for layer in module.modules():
                layer.register_forward_hook(count)
            _call(module, task)
        except Exception:
            return 0.0
    return sum(counted)


def _call(module: nn.Module, task: Task) -> None:
    """One forward pass on a small batch."""
    shape = (task.latent,) if task.kind == "g" else task.shape
    labels = (torch.zeros(SMALL.batch, dtype=torch.int64),) if takes_label(module) else ()
    with streams.MemberRandomness(torch.tensor(0)):
        module(torch.zeros(SMALL.batch, *shape), *labels)


def _python_state(module: nn.Module) -> dict[str, object]:
    """Plain Python values that the module and its layers hold, by name; of collections, their length."""
    found: dict[str, object] = {}
    for prefix, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name.startswith("_"):
                continue
            if isinstance(value, (bool, int, float, str, type(None))):
                found[f"{prefix}.{name}".lstrip(".")] = value
            elif isinstance(value, (list, dict, set)):
                found[f"{prefix}.{name}".lstrip(".")] = len(value)
    return found


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0].rstrip('.')}"
