"""KID of mixtures: kernels between generators are means that weights only re-weigh, so that each pair is computed once."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ganherd.metrics.kid import kernel

_ROWS = 1000  # of a kernel at once


class RealSide:
    """Features of the data, and how alike they are among themselves."""

    def __init__(self, features: Tensor, where: torch.device) -> None:
        """`features` [m, F], wherever they lie, without bias however few; `where`: where kernels are computed."""
        self.x = features.double().to(where)

    @cached_property
    def within(self) -> Tensor:
        return _mean(self.x, self.x, alike=True)


class KernelScore:
    """The squared discrepancy of mixtures from the data under the kernel of KID, without bias: two samples of the same
    generator are never the same one.

    >>> x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    >>> score = KernelScore(x, RealSide(torch.tensor([[1.0], [3.0], [5.0]]), torch.device("cpu")))
    >>> both = score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [0, 1]]))
    >>> bool(both[0] < both[1])
    True
    """

    def __init__(self, features: Tensor, real: RealSide) -> None:
        """`features` [G, n, F]: of each generator as many samples."""
        self.real, where = real, real.x.device
        self.broken = ~features.isfinite().flatten(1).all(1).to(where)  # [G] infinitely far, and harm no others
        self.x = features.to(where).double().masked_fill(self.broken[:, None, None], 0)
        self.to_data = torch.stack([_mean(x, real.x) for x in self.x])  # [G]
        self.within = self.x.new_full((len(self.x), len(self.x)), torch.nan)  # [G, G], as far as they were asked for

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        own, of = weights.to(self.x), table.to(self.x.device)
        first, second = of.unsqueeze(2), of.unsqueeze(1)  # [M, s, 1], [M, 1, s]
        self._compare(first, second)
        among = (own.unsqueeze(2) * own.unsqueeze(1) * self.within[first, second]).sum((1, 2))
        found = among - 2 * (own * self.to_data[of]).sum(1) + self.real.within
        touched = ((own > 0) & self.broken[of]).any(1)
        return found.masked_fill(touched, torch.inf).to(weights)

    def _compare(self, first: Tensor, second: Tensor) -> None:
        """Computes what is not known yet of these pairs."""
        wanted = torch.zeros_like(self.within, dtype=torch.bool)
        wanted[first, second] = True
        for a, b in (wanted.triu() & self.within.isnan()).nonzero().tolist():  # every table holds both orders of a pair
            self.within[a, b] = self.within[b, a] = _mean(self.x[a], self.x[b], alike=a == b)


def _mean(x: Tensor, y: Tensor, alike: bool = False) -> Tensor:
    """The mean kernel of features [n, F] and [m, F]; `alike`: they are the same, and none is compared with itself."""
    total = torch.stack([kernel(part, y).sum() for part in x.split(_ROWS)]).sum()
    if not alike:
        return total / (len(x) * len(y))
    itself = (x.square().sum(1) / x.shape[1] + 1) ** 3
    return (total - itself.sum()) / (len(x) * (len(x) - 1))
