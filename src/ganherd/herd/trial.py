"""What plain PyTorch and an engine train when they are compared: a net, its trivial partner, data and the rules of a step."""

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
from ganherd.herd import streams
from ganherd.herd.reference import Settings
from ganherd.herd.rules import Rules
from ganherd.herd.state import Habits, Seat, takes_label
from ganherd.losses import Game

SEATS = (Seat(0, 0), Seat(0, 1))


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
    habits: Habits | None = None  # what the engines know of the module, from trying it out

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
        return f"{len(SEATS)} members, batch {self.batch}, {steps}, {str(dtype).removeprefix('torch.')}"


SMALL = Extent(batch=2, steps=1, passes=1)


def rules_of(task: Task, extent: Extent) -> Rules:
    """A step with one update of each net, and a smooth loss that differentiates twice if the recipe's does."""
    game = Game(("wasserstein-gp" if task.penalty else "non-saturating",))
    return Rules(
        game, extent.batch, task.latent, eps=Settings().eps, gp_weight=1.0, r1=float(task.r1), precision="float64"
    )


def feed_of(task: Task, extent: Extent, dtype: torch.dtype) -> Feed:
    """Random samples in [-1, 1) of each member, with labels that spread over all classes."""
    each = extent.batch * extent.steps
    rows = each * len(SEATS)
    x = streams.draw(np.array([streams.key(0, streams.ORDER)]), (rows, *task.shape), "uniform", dtype)[0] * 2.0 - 1.0
    last = max(task.classes - 1, 0)
    y = torch.arange(rows) % (last + 1) if last < rows else torch.linspace(0, last, rows).round().long()
    index = np.arange(rows).reshape(len(SEATS), each)
    return Feed(x, y, index, np.full(len(SEATS), each), extent.batch, 0.0, 1.0, dtype)


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
def unrelated_random_numbers(seed: int) -> Iterator[None]:
    """Seed every global generator, and restore it: both sides differ if a net draws from one of them."""
    before, before_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before), np.random.set_state(before_numpy)


def operations(task: Task) -> float:
    """Estimate the floating-point operations of the net on one sample; 0 if it does not run."""
    counted: list[float] = []

    def count(layer: nn.Module, given: object, output: object) -> None:
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.dim() > 1]
        if own and isinstance(output, Tensor) and len(output):
            counted.append(2.0 * sum(p.numel() * output[0].numel() / p.shape[0] for p in own))

    with unrelated_random_numbers(0), torch.no_grad():
        try:
            module = task.make()
            for layer in module.modules():
                layer.register_forward_hook(count)
            call_once(module, task)
        except Exception:
            return 0.0
    return sum(counted)


def call_once(module: nn.Module, task: Task) -> None:
    """One forward pass on a small batch."""
    shape = (task.latent,) if task.kind == "g" else task.shape
    labels = (torch.zeros(SMALL.batch, dtype=torch.int64),) if takes_label(module) else ()
    with streams.MemberRandomness(torch.tensor(0)):
        module(torch.zeros(SMALL.batch, *shape), *labels)
