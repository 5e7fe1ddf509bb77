"""Draw random numbers for several training steps at once, because a small draw on a CPU is mostly overhead."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng

_STEPS_AHEAD, _NUMBERS_AHEAD = 32, 1 << 20  # most steps that one draw covers, and most numbers of all draws together


class DrawsAhead:
    """Return random numbers step by step, but draw them for several steps at once.

    The numbers are the same as those that `Streams` would draw for each step. The first draw is for one step. Each draw
    for the steps that follow is for twice as many steps as the draw before, up to a limit.
    """

    def __init__(self) -> None:
        # By members, purpose and shape: the next step, the number of steps of the last draw, and its unused numbers,
        # last step first
        self._drawn: dict[Hashable, tuple[int, int, list[Tensor]]] = {}

    def draw(
        self, base: np.ndarray, step: int, purpose: rng.Purpose, shape: Sequence[int], kind: str, dtype: torch.dtype
    ) -> Tensor:
        """Return random numbers [N, *shape] of one step, each row from one member's random stream.

        Args:
            base: int64 [N] the members' base keys.
            step: The step; calls with the same other arguments should have consecutive steps.
            purpose: What the numbers are for; see `rng.Purpose`.
            kind: `normal` or `uniform`; see `rng.draw`.
        """
        what = (base.tobytes(), purpose, *shape, kind, dtype, rng.version())
        expected, steps, left = self._drawn.get(what, (step, 0, []))
        if step != expected:
            steps, left = 0, []
        if not left:
            share = _NUMBERS_AHEAD // max(1, len(self._drawn) * len(base) * math.prod(shape))
            steps = max(1, min(2 * steps, _STEPS_AHEAD, share))
            each = np.arange(step, step + steps).repeat(len(base))
            drawn = rng.draw(rng.keys(rng.keys(np.tile(base, steps), each), *purpose), shape, kind, dtype)
            left = list(drawn.unflatten(0, (steps, len(base))).unbind())[::-1]
        numbers = left.pop()  # each tensor is returned only once, because nets may change their inputs
        self._drawn[what] = step + 1, steps, left
        return numbers

    def clear(self) -> None:
        """Drop all numbers that were drawn and not returned yet."""
        self._drawn.clear()
