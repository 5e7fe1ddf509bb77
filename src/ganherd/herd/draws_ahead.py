"""Draw random numbers for several steps of training at once, because small draws on a CPU take most of their time to start."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng

_STEPS_AHEAD, _NUMBERS_AHEAD = 32, 1 << 20  # most steps of a draw ahead, and most numbers of all of them


class DrawsAhead:
    """Draw for several steps at once, on a CPU, where small draws spend most of their time on their start.

    The numbers are those that `Streams` draws step by step. The first step draws for itself, and each draw that continues the one
    before it is for twice as many steps, up to a limit.
    """

    def __init__(self) -> None:
        # By members and purpose: the next step, the number of steps of the last draw, and what is left of it
        self._drawn: dict[Hashable, tuple[int, int, list[Tensor]]] = {}

    def draw(
        self, base: np.ndarray, step: int, purpose: rng.Purpose, shape: Sequence[int], kind: str, dtype: torch.dtype
    ) -> Tensor:
        """Draw numbers [N, *shape] of members with these base keys [N] for one purpose at a step."""
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
        numbers = left.pop()  # given once, because nets may change their inputs
        self._drawn[what] = step + 1, steps, left
        return numbers

    def clear(self) -> None:
        """Forget what is left."""
        self._drawn.clear()
