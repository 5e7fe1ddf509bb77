"""Choose how often members are looked at, from counted operations: the same on every machine, engine and number of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ganherd.herd.checks.flops import count_operations
from ganherd.herd.checks.trial import batch_sizes
from ganherd.herd.step.rules import StepRules
from ganherd.training.health.monitor import IMAGES, look_work
from ganherd.training.setup.assemble import PreparedHerd

SHARE = 0.02  # the largest share of the work of training that looks may take
# What an operation of a look, which is in float64, costs in operations of a step: about twice as much as in float32, and much more
# than on the tensor cores that the shorter types are for.
_WIDE = {"float64": 1, "float32": 2, "tf32": 8, "bf16": 16}
_START = 3e7  # operations that a core could do while it starts the layers of one member, in a step or in a look


@dataclass
class LookInterval:
    """Schedule looks at the multiples of `every` from the step `first` on; `every` 0: no looks."""

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
    """Return the steps between looks, a multiple of those between records, from the work of a look and of a step.

    >>> choose(0.7, 1.0, 50), choose(10.0, 1.0, 50)
    (50, 500)
    """
    return max(1, math.ceil(look / (SHARE * step) / records)) * records


def counted(prepared: PreparedHerd) -> tuple[float, float]:
    """Return the work of a look and of a step, in floating-point operations of a step, of the mean member.

    It depends on nets, rules and data only, not on the number of members, so stacked replicas have the interval of single runs.
    """
    data, rules = prepared.dataset, prepared.herd.rules
    # The work per row depends on the number of rows if a net computes with its weights.
    batches = (2, *batch_sizes(rules.batch))
    each, slots = [], [len(breed.slots) for breed in prepared.herd.breeds.all]
    for slot in accumulate(slots[:-1], initial=0):
        make_g, make_d = prepared.makers(slot)
        each.append(count_operations(make_g, (rules.latent,), batches))
    g, d = float(np.average(each, weights=slots)), count_operations(make_d, data.shape, batches)
    look = IMAGES * (g + 2 * d) + look_work(data.shape, len(data.x))
    return _START + _WIDE[rules.precision] * look, _START + step_work(rules, g, d)


def step_work(rules: StepRules, g: float, d: float) -> float:
    """Return the operations of a step, from those of the generator and of the discriminator for one image.

    A backward pass costs twice its forward pass, half of that if only the input has a gradient. A penalty also differentiates the
    backward pass.
    """
    penalties = int(rules.game.penalty) + int(rules.r1 > 0)
    updates = rules.n_critic / (rules.skip_d + 1)
    fakes = g if rules.fakes == "fresh" else 0.0
    return rules.batch * (updates * (fakes + (2 * 3 + 6 * penalties) * d) + 3 * g + 2 * d)
