"""KID of mixtures. The mean kernel of each pair of generators is computed once; weights only re-weigh these means."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ganherd.metrics.kid import kernel
from ganherd.strategies.mixing.scorers import fill_broken

_ROWS = 1000  # rows of a kernel matrix computed at once


class RealSide:
    """Features of the data, and the mean kernel between them."""

    def __init__(self, features: Tensor, where: torch.device) -> None:
        """Store features [m, F], on any device; `where` is the device that kernels are computed on."""
        self.x = features.double().to(where)

    @cached_property
    def within(self) -> Tensor:
        """Return the mean kernel between different rows."""
        return _mean(self.x, self.x, same=True)


class KernelScore:
    """Squared maximum mean discrepancy between mixtures and data under the kernel of KID.

    It is unbiased: a sample is never compared with itself.

    >>> x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    >>> score = KernelScore(x, RealSide(torch.tensor([[1.0], [3.0], [5.0]]), torch.device("cpu")))
    >>> both = score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [0, 1]]))
    >>> bool(both[0] < both[1])
    True
    """

    def __init__(self, features: Tensor, real: RealSide) -> None:
        """Store features [G, n, F], with n samples of each generator."""
        self.real, where = real, real.x.device
        # bool [G], True for generators that score infinite and must not affect others.
        self.broken = ~features.isfinite().flatten(1).all(1).to(where)
        self.x = features.to(where).double().masked_fill(self.broken[:, None, None], 0)
        self.to_data = torch.stack([_mean(x, real.x) for x in self.x])  # [G]
        self.within = self.x.new_full((len(self.x), len(self.x)), torch.nan)  # [G, G], computed on demand; NaN: not yet

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        weights_here, rows = weights.to(self.x), table.to(self.x.device)
        first, second = rows.unsqueeze(2), rows.unsqueeze(1)  # [M, s, 1], [M, 1, s]
        self._compare(first, second)
        pair_weights = weights_here.unsqueeze(2) * weights_here.unsqueeze(1)
        within = (pair_weights * self.within[first, second]).sum((1, 2))
        discrepancy = within - 2 * (weights_here * self.to_data[rows]).sum(1) + self.real.within
        return fill_broken(discrepancy, weights_here, self.broken[rows], torch.inf).to(weights)

    def _compare(self, first: Tensor, second: Tensor) -> None:
        """Compute the mean kernels of these pairs that are not known yet."""
        wanted = torch.zeros_like(self.within, dtype=torch.bool)
        wanted[first, second] = True
        for a, b in (wanted.triu() & self.within.isnan()).nonzero().tolist():  # Tables hold both orders of a pair.
            self.within[a, b] = self.within[b, a] = _mean(self.x[a], self.x[b], same=a == b)


def _mean(x: Tensor, y: Tensor, same: bool = False) -> Tensor:
    """Return the mean kernel of features [n, F] and [m, F]; if `same`, x is y, and no row is compared with itself."""
    total = torch.stack([kernel(rows, y).sum() for rows in x.split(_ROWS)]).sum()
    if not same:
        return total / (len(x) * len(y))
    itself = (x.square().sum(1) / x.shape[1] + 1) ** 3
    return (total - itself.sum()) / (len(x) * (len(x) - 1))
