"""Choose how often the monitor looks at the members, from counted operations: the same on every machine and engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ganherd.herd.checks.flops import count_operations
from ganherd.herd.checks.trial import LOOK_SAMPLES, batch_sizes
from ganherd.herd.step.rules import StepRules
from ganherd.training.health.monitor import look_work
from ganherd.training.setup.assemble import PreparedHerd

SHARE = 0.02  # the largest share of the work of training that looks may take
# Cost of an operation of a look, which is in float64, relative to one of a step: about twice that of float32, and much more than
# that of the shorter types, for which there are tensor cores.
_WIDE = {"float64": 1, "float32": 2, "tf32": 8, "bf16": 16}
_START = 3e7  # operations that a core could do while it starts the layers of one member, in a step or in a look


@dataclass
class LookInterval:
    """The steps at which the monitor looks at the members: the multiples of `every` from `first` on; `every` 0: none."""

    every: int
    first: int = 0

    def is_due(self, step: int) -> bool:
        return bool(self.every) and step >= self.first and step % self.every == 0

    def next_after(self, step: int) -> list[int]:
        """Return the step of the next look in a list, which is empty if there are no looks.

        >>> LookInterval(50).next_after(100), LookInterval(50, 300).next_after(100), LookInterval(0).next_after(100)
        ([150], [300], [])
        """
        if not self.every:
            return []
        return [max(step // self.every + 1, -(-self.first // self.every)) * self.every]


def planned(prepared: PreparedHerd) -> LookInterval:
    """Return the look interval of a new run: the recipe's, or for `auto` one from counted work."""
    settings = prepared.recipe.run
    if settings.watch.every != "auto":
        return LookInterval(int(settings.watch.every))
    return LookInterval(choose(*counted(prepared), settings.record_every))


def choose(look: float, step: float, records: int) -> int:
    """Return the number of steps between looks so that looks take at most 2 % of the work of training.

    Args:
        look: The work of a look at one member.
        step: The work of a step of one member.
        records: Steps between records; the result is a multiple of it.

    >>> choose(0.7, 1.0, 50), choose(10.0, 1.0, 50)
    (50, 500)
    """
    return max(1, math.ceil(look / (SHARE * step) / records)) * records


def counted(prepared: PreparedHerd) -> tuple[float, float]:
    """Return the work of a look and of a step for the mean member, in floating-point operations.

    An operation of a look counts as several of a step, because looks compute in float64. The result does not depend on the number
    of members, so that stacked replicas have the same interval as single runs.
    """
    data, rules = prepared.dataset, prepared.herd.rules
    # The work per row depends on the number of rows if a net computes with its weights.
    batches = (2, *batch_sizes(rules.batch))
    each, slots = [], [len(breed.slots) for breed in prepared.herd.breeds.all]
    for slot in accumulate(slots[:-1], initial=0):
        make_g, make_d = prepared.makers(slot)
        each.append(count_operations(make_g, (rules.latent,), batches))
    g, d = float(np.average(each, weights=slots)), count_operations(make_d, data.shape, batches)
    look = LOOK_SAMPLES * (g + 2 * d) + look_work(data.shape, len(data.x))
    return _START + _WIDE[rules.precision] * look, _START + step_work(rules, g, d)


def step_work(rules: StepRules, g: float, d: float) -> float:
    """Return the operations of a step, from those of the generator and of the discriminator for one image.

    A backward pass costs twice its forward pass, half of that if only the input has a gradient. A penalty also differentiates the
    backward pass.
    """
    penalties = int(rules.game.penalty) + (int(rules.r1 > 0) + int(rules.r2 > 0)) / rules.r1_every
    updates = rules.n_critic / (rules.skip_d + 1)
    fakes = g if rules.fakes == "fresh" else 0.0
    return rules.batch * (updates * (fakes + (2 * 3 + 6 * penalties) * d) + 3 * g + 2 * d)
