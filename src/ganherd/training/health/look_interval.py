"""Choose how often the monitor looks at the members (checks their health).

The interval is computed from counted operations, not from measured times, so that it is the same on every machine and
engine.
"""

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
# The cost of an operation of a look, relative to one of a training step in this precision. Looks compute in float64,
# which costs about twice as much as float32, and much more than the shorter types, for which there are tensor cores.
_WIDE = {"float64": 1, "float32": 2, "tf32": 8, "bf16": 16}
# The cost of starting the layers of one member, in a step or a look: the operations that a core could do in this time.
_START = 3e7


@dataclass
class LookInterval:
    """The steps at which the monitor looks at the members: the multiples of `every` from step `first` on.

    If `every` is 0, there are none.
    """

    every: int
    first: int = 0

    def is_due(self, step: int) -> bool:
        """Return whether the monitor looks at the members at this step."""
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
    """Return the look interval of a new run: that of the recipe, or if it is `auto`, one from counted operations."""
    settings = prepared.recipe.run
    if settings.watch.every != "auto":
        return LookInterval(int(settings.watch.every))
    return LookInterval(choose(*counted(prepared), settings.record_every))


def choose(look: float, step: float, records: int) -> int:
    """Return the number of steps between looks so that looks take at most 2 % of the work of training.

    Args:
        look: The work of a look at one member, in operations.
        step: The work of a step of one member, in operations.
        records: Steps between records; the result is a multiple of it.

    >>> choose(0.7, 1.0, 50), choose(10.0, 1.0, 50)
    (50, 500)
    """
    return max(1, math.ceil(look / (SHARE * step) / records)) * records


def counted(prepared: PreparedHerd) -> tuple[float, float]:
    """Return the work of a look and of a step, in floating-point operations, averaged over the members.

    An operation of a look counts as several of a step, because looks compute in float64. The result does not depend on the number
    of members, so that replicas that are trained together have the same interval as single runs.
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

    A backward pass costs twice as much as its forward pass, and half of that if only the input has a gradient. A
    penalty also differentiates the backward pass.

    Args:
        g: Operations of the generator for one image.
        d: Operations of the discriminator for one image.
    """
    penalties = int(rules.game.penalty) + (int(rules.r1 > 0) + int(rules.r2 > 0)) / rules.r1_every
    updates = rules.n_critic / (rules.skip_d + 1)
    fresh = updates - (rules.fakes == "shared") / (rules.skip_d + 1)  # discriminator updates with new samples
    return rules.batch * (fresh * g + updates * (2 * 3 + 6 * penalties) * d + 3 * g + 2 * d)
