"""What plain PyTorch and an engine train when they are compared: a net, its trivial partner, data and the rules of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.herd import rng
from ganherd.herd.checks.plain_pytorch import AdamSettings
from ganherd.herd.feed import Feed
from ganherd.herd.state import ModuleTraits, Seat
from ganherd.herd.step.rules import StepRules
from ganherd.losses import Game

SEATS = (Seat(0, 0), Seat(0, 1))
FEW_SAMPLES = 4  # samples that a net is tried out on; even, since some nets compare pairs
MAX_FULL_BATCH = 8  # samples of a recipe's batch, up to which a net is tried out on all of them

T = TypeVar("T")


@dataclass(frozen=True)
class ComparisonTask:
    """A net to check, and what it is trained on."""

    role: str  # generator or discriminator
    name: str  # as the recipe names the net
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one sample
    latent: int
    classes: int
    penalty: bool = False  # the loss differentiates the discriminator twice, between real and fake samples …
    r1: bool = False  # … or at real ones
    traits: ModuleTraits | None = None  # what the engines know of the module, from trying it out
    batch: int = 4  # samples in a batch of the recipe

    @property
    def kind(self) -> str:
        return self.role[0]

    @property
    def input(self) -> tuple[int, ...]:
        """The shape of one row of the net's input."""
        return (self.latent,) if self.kind == "g" else self.shape

    def pair(self) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Functions that make the net and its trivial partner: (generator, discriminator)."""
        if self.kind == "g":
            return self.make, lambda: _Judge(self.shape)
        return lambda: _Painter(self.shape), self.make


@dataclass(frozen=True)
class Extent:
    """How much is computed: samples in a batch, steps, and how often an engine repeats them from the same start."""

    batch: int = FEW_SAMPLES
    steps: int = 2
    passes: int = 2

    def describe(self, dtype: torch.dtype) -> str:
        steps = f"{self.steps} step{'s' * (self.steps > 1)}"
        return f"{len(SEATS)} members, batch {self.batch}, {steps}, {str(dtype).removeprefix('torch.')}"


SMALL_EXTENT = Extent(steps=1, passes=1)


def batch_sizes(batch: int) -> tuple[int, ...]:
    """Return how many samples a net of a recipe with this batch is tried out on: a few, then as many as it trains on.

    A net may need a certain number, for example because it compares groups of samples.

    >>> batch_sizes(32), batch_sizes(6)
    ((4, 32), (6,))
    """
    return (batch,) if batch <= MAX_FULL_BATCH else (FEW_SAMPLES, batch)


def first_that_runs(call: Callable[[int], T], batches: Sequence[int], failure: type[Exception] = Exception) -> T:
    """Return what a function returns for the first of these batch sizes that it does not fail with, else raise the last error."""
    for batch in batches[:-1]:
        with suppress(failure):
            return call(batch)
    return call(batches[-1])


def rules_of(task: ComparisonTask, extent: Extent) -> StepRules:
    """A step with one update of each net, and a smooth loss that differentiates twice if the recipe's does."""
    game = Game(("wasserstein-gp" if task.penalty else "non-saturating",))
    return StepRules(
        game, extent.batch, task.latent, eps=AdamSettings().eps, gp_weight=1.0, r1=float(task.r1), precision="float64"
    )


def feed_of(task: ComparisonTask, extent: Extent, dtype: torch.dtype) -> Feed:
    """Random samples in [-1, 1) of each member, with labels that spread over all classes."""
    each = extent.batch * extent.steps
    rows = each * len(SEATS)
    x = rng.draw(np.array([rng.key(0, rng.ORDER)]), (rows, *task.shape), "uniform", dtype)[0] * 2.0 - 1.0
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
