"""Train a small net with Adam and PyTorch's one-cycle learning-rate schedule, without importing PyTorch's compiler.

The first use of `torch.optim.Adam` imports the compiler, which takes more than a second in every process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam

MAX_LR = 5e-3
FIRST_LR = MAX_LR / 25  # the defaults of torch.optim.lr_scheduler.OneCycleLR, like all numbers below
LAST_LR = FIRST_LR / 1e4
RISING = 0.3  # share of the steps in which the learning rate rises
BETA1 = (0.85, 0.95)  # when the learning rate is largest, and at the first and last step
BETA2, EPS = 0.999, 1e-8


class OneCycleAdam:
    """Adam with a one-cycle schedule over `steps` steps; the parameters are updated in place.

    The result is bit for bit that of `torch.optim.Adam` with `OneCycleLR(optimiser, max_lr=5e-3, total_steps=steps)`.
    """

    def __init__(self, params: Iterable[Tensor], steps: int) -> None:
        self._params = list(params)
        self._m = [torch.zeros_like(param) for param in self._params]
        self._v = [torch.zeros_like(param) for param in self._params]
        self._updates = [torch.tensor(0.0) for _ in self._params]
        self._step, self._steps = 0, steps

    @torch.no_grad()
    def update(self, loss: Tensor) -> None:
        """Compute the gradients of a loss and take one step."""
        grads = list(torch.autograd.grad(loss, self._params))
        lr, beta1 = one_cycle(self._step, self._steps)
        adam(
            self._params, grads, self._m, self._v, [], self._updates,
            amsgrad=False, maximize=False, weight_decay=0.0, lr=lr, beta1=beta1, beta2=BETA2, eps=EPS,
        )  # fmt: skip
        self._step += 1


def one_cycle(step: int, steps: int) -> tuple[float, float]:
    """Return the learning rate and Adam's beta1 at `step` of `steps`, counted from 0.

    >>> [tuple(round(value, 4) for value in one_cycle(step, 101)) for step in (0, 29, 100)]
    [(0.0002, 0.95), (0.005, 0.85), (0.0, 0.95)]
    """
    peak, last = RISING * steps - 1, steps - 1
    low, high = BETA1
    if step <= peak:
        share = step / peak
        return _cosine(FIRST_LR, MAX_LR, share), _cosine(high, low, share)
    share = (step - peak) / (last - peak)
    return _cosine(MAX_LR, LAST_LR, share), _cosine(low, high, share)


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
