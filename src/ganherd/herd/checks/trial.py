"""Set up a comparison between plain PyTorch and an engine: a net, a trivial partner, data and rules of a step.

See `herd.checks.guard`. A member is one GAN; two of them are trained in a comparison.
"""

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
from ganherd.herd.batch_feed import BatchPlan, Feed
from ganherd.herd.checks.plain_pytorch import ADAM
from ganherd.herd.state import ModuleTraits, Seat
from ganherd.herd.step.rules import StepRules
from ganherd.losses.adversarial import Game

SEATS = (Seat(0, 0), Seat(0, 1))
FEW_SAMPLES = 4  # samples that a net is tried with; even, because some nets compare pairs
# Generated samples, and real images, of each member in a health check. Nets are called with this many, too, whatever
# the recipe's batch is.
LOOK_SAMPLES = 64
MAX_FULL_BATCH = 8  # a net is tried with the recipe's batch only, if that has at most this many samples

T = TypeVar("T")


@dataclass(frozen=True)
class ComparisonTask:
    """A net to check, and the settings of the training with which it is checked."""

    role: str  # generator or discriminator
    name: str  # the name of the net in the recipe
    make: Callable[[], nn.Module]  # builds the net
    shape: tuple[int, ...]  # the shape of one sample of the data
    latent: int  # length of the generator's input noise
    classes: int
    penalty: bool = False  # the loss has a gradient penalty between real and fake samples
    r1: bool = False  # the loss has an R1 penalty
    traits: ModuleTraits | None = None  # observed when the module was tried out
    batch: int = 4  # samples in a batch of the recipe
    operations: str = "plain"  # the library of operations of the engine `fused`; see `herd.lowering.lower.OPERATIONS`

    @property
    def kind(self) -> str:
        """Return `g` for a generator, `d` for a discriminator."""
        return self.role[0]

    @property
    def input(self) -> tuple[int, ...]:
        """Return the shape of one sample of the net's input."""
        return (self.latent,) if self.kind == "g" else self.shape

    def pair(self) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Return functions that build the generator and the discriminator: this net and a trivial partner."""
        if self.kind == "g":
            return self.make, lambda: _Judge(self.shape)
        return lambda: _Painter(self.shape), self.make


@dataclass(frozen=True)
class Extent:
    """How much a comparison computes."""

    batch: int = FEW_SAMPLES  # samples in a batch
    steps: int = 2  # training steps
    passes: int = 2  # how often an engine makes these steps from the same start

    def describe(self, dtype: torch.dtype) -> str:
        """Return a description of the extent, e.g. "2 members, batch 4, 2 steps, float64"."""
        steps = f"{self.steps} step{'s' * (self.steps > 1)}"
        return f"{len(SEATS)} members, batch {self.batch}, {steps}, {str(dtype).removeprefix('torch.')}"


SMALL_EXTENT = Extent(steps=1, passes=1)


def batch_sizes(batch: int) -> tuple[int, ...]:
    """Return the batch sizes that a net is tried with: a few samples first, then the recipe's batch.

    A net may need a certain number of samples, for example because it compares groups of them.

    >>> batch_sizes(32), batch_sizes(6)
    ((4, 32), (6,))
    """
    return (batch,) if batch <= MAX_FULL_BATCH else (FEW_SAMPLES, batch)


def first_that_runs(call: Callable[[int], T], batches: Sequence[int], failure: type[Exception] = Exception) -> T:
    """Call a function with one batch size after another until a call does not fail, and return its result.

    If all calls fail, the error of the last one is raised.

    Args:
        failure: The errors after which the next batch size is tried; others are raised.
    """
    for batch in batches[:-1]:
        with suppress(failure):
            return call(batch)
    return call(batches[-1])


def rules_of(task: ComparisonTask, extent: Extent) -> StepRules:
    """Return rules with one update of each net per step, a smooth loss, and the gradient penalties of the recipe."""
    game = Game(("wasserstein-gp" if task.penalty else "non-saturating",))
    r1 = float(task.r1)
    return StepRules(game, extent.batch, task.latent, eps=ADAM["eps"], gp_weight=1.0, r1=r1, precision="float64")


def feed_of(task: ComparisonTask, extent: Extent, dtype: torch.dtype) -> Feed:
    """Return a feed of random samples in [-1, 1), different for each member, with labels spread over all classes."""
    each = extent.batch * extent.steps
    rows = each * len(SEATS)
    x = rng.draw(np.array([rng.key(0, rng.ORDER)]), (rows, *task.shape), "uniform", dtype)[0] * 2.0 - 1.0
    last = max(task.classes - 1, 0)
    y = torch.arange(rows) % (last + 1) if last < rows else torch.linspace(0, last, rows).round().long()
    index = np.arange(rows).reshape(len(SEATS), each)
    return Feed(x, y, BatchPlan(index, np.full(len(SEATS), each), extent.batch, 0.0, 1.0, dtype))


class _Judge(nn.Module):
    """A trivial discriminator whose logit depends on every number of a sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(math.prod(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x.flatten(1)) * self.weight).sum(1)


class _Painter(nn.Module):
    """A trivial generator with its own weight and bias for every number of a sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.weight, self.bias = (nn.Parameter(torch.randn(math.prod(shape))) for _ in range(2))

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z[:, :1] * self.weight + self.bias).reshape(len(z), *self.shape)
