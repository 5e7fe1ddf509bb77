"""KID (kernel inception distance) of mixtures.

KID is a squared maximum mean discrepancy: mean k(x, x') + mean k(y, y') - 2 · mean k(x, y), for a kernel k, features x
of samples and y of data. If samples come from a mixture, the first and last mean are weighted sums of the mean kernels
of pairs of generators, and of each generator with the data. These means are computed once; a change of weights only
re-weighs them.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ganherd.metrics.kid import kernel
from ganherd.strategies.mixing.scorers import fill_broken

_ROWS = 1000  # rows of a kernel matrix computed at once


class RealSide:
    """Features of the data, and their mean kernel with each other."""

    def __init__(self, features: Tensor, where: torch.device) -> None:
        """Store features [m, F], on any device; `where` is the device that kernels are computed on."""
        self.x = features.double().to(where)

    @cached_property
    def within(self) -> Tensor:
        """Return the mean kernel over all pairs of different samples of the data, a tensor with one number."""
        return _mean(self.x, self.x, same=True)


class KernelScore:
    """A score of mixtures: the squared maximum mean discrepancy from the data under the kernel of KID; less is better.

    The estimate is unbiased, because no sample is compared with itself.

    >>> x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    >>> score = KernelScore(x, RealSide(torch.tensor([[1.0], [3.0], [5.0]]), torch.device("cpu")))
    >>> both = score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [0, 1]]))
    >>> bool(both[0] < both[1])
    True
    """

    def __init__(self, features: Tensor, real: RealSide) -> None:
        """Compute the mean kernel between each generator and the data.

        Args:
            features: [G, n, F], the features of n samples of each of G generators.
            real: The features of the data.
        """
        self.real, where = real, real.x.device
        # bool [G], True for generators with NaN: mixtures with them score infinite, and others must not be affected.
        self.broken = ~features.isfinite().flatten(1).all(1).to(where)
        self.x = features.to(where).double().masked_fill(self.broken[:, None, None], 0)
        self.to_data = torch.stack([_mean(x, real.x) for x in self.x])  # [G]
        # [G, G], the mean kernel between each pair of generators, computed when a mixture needs it; NaN: not computed
        # yet
        self.within = self.x.new_full((len(self.x), len(self.x)), torch.nan)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        weights_here, rows = weights.to(self.x), table.to(self.x.device)
        first, second = rows.unsqueeze(2), rows.unsqueeze(1)  # [M, s, 1], [M, 1, s]
        self._compare(first, second)
        pair_weights = weights_here.unsqueeze(2) * weights_here.unsqueeze(1)
        within = (pair_weights * self.within[first, second]).sum((1, 2))
        discrepancy = within - 2 * (weights_here * self.to_data[rows]).sum(1) + self.real.within
        return fill_broken(discrepancy, weights_here, self.broken[rows], torch.inf).to(weights)

    def _compare(self, first: Tensor, second: Tensor) -> None:
        """Fill in `within` for these pairs of generators, if it is not computed yet.

        The indices `first` and `second` are broadcast against each other.
        """
        wanted = torch.zeros_like(self.within, dtype=torch.bool)
        wanted[first, second] = True
        for a, b in (wanted.triu() & self.within.isnan()).nonzero().tolist():  # Tables hold both orders of a pair.
            self.within[a, b] = self.within[b, a] = _mean(self.x[a], self.x[b], same=a == b)


def _mean(x: Tensor, y: Tensor, same: bool = False) -> Tensor:
    """Return the mean kernel over all pairs of a row of x [n, F] and a row of y [m, F], a tensor with one number.

    If `same`, x and y are the same tensor, and pairs of a row with itself are left out.
    """
    total = torch.stack([kernel(rows, y).sum() for rows in x.split(_ROWS)]).sum()
    if not same:
        return total / (len(x) * len(y))
    itself = (x.square().sum(1) / x.shape[1] + 1) ** 3
    return (total - itself.sum()) / (len(x) * (len(x) - 1))
