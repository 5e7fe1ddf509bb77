"""Scores of mixtures from a few numbers of each generator: what weights make of shares, of places that are hit, of classes.

As `mixing.FrechetScore` and `mixing.VariationScore`, each takes weights [M, s] of the generators that a table [M, s] names.
They answer the score itself; `Oriented` turns it so that less is better, as searches want it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ganherd.strategies.mixing.mixing import MixtureScorer
from ganherd.util.errors import UserError

_AT_ONCE = 1 << 23  # numbers that one evaluation may gather
Function = Callable[[np.ndarray, np.ndarray, np.ndarray], float]  # (features [s, n, F], weights [s], real [m, F])


class Oriented:
    """A score for which less is better: infinitely bad with a generator that is no number, turned where more is better.

    >>> score = Oriented(LinearScore(torch.tensor([0.5, 0.75, 1.0])), torch.tensor([False, False, True]), more=True)
    >>> score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [0, 2]])).tolist()
    [-0.625, -0.5]
    >>> score(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 2]])).item()
    inf
    """

    def __init__(self, score: MixtureScorer, broken: Tensor, more: bool) -> None:
        """`broken` bool [G]."""
        self._score, self._broken, self._sign = score, broken, -1.0 if more else 1.0

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        touched = ((weights > 0) & self._broken.to(weights.device)[table]).any(1)
        return (self._sign * self._score(weights, table)).masked_fill(touched, torch.inf)


class LinearScore:
    """A mean over samples, each judged by itself: precision, density, label accuracy. [G] of each generator.

    >>> LinearScore(torch.tensor([0.0, 1.0]))(torch.tensor([[0.25, 0.75]]).double(), torch.tensor([[0, 1]])).item()
    0.75
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.double().nan_to_num(0.0).cpu()

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        return (weights.cpu() * self.values[table.cpu()]).sum(1).to(weights)


class CapturedScore:
    """How many of R places are hit, where n samples are drawn: w·n of each generator's n, none of them twice.

    The mean over all such draws, so that it is smooth in the weights; of one generator alone exactly what its samples hit.
    Places are modes, or (coverage) the neighbourhoods of real samples.

    >>> score = CapturedScore(torch.tensor([[2, 0], [0, 1]]), samples=2)  # two hit the first place, one of two the second
    >>> score(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1]] * 3)).tolist()
    [1.0, 1.0, 1.5]
    """

    def __init__(self, hits: Tensor, samples: int, share: bool = False) -> None:
        """`hits` int64 [G, R]: how many of a generator's samples lie in each place; `share`: of all places, instead."""
        self.hits, self.samples = hits.long().cpu(), samples
        self.scale = 1.0 / hits.shape[1] if share else 1.0
        self._i = torch.arange(int(self.hits.max()) if self.hits.numel() else 0, dtype=torch.float64)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        wide = table.shape[1] * max(self.hits.shape[1], len(self._i) + 1)
        most = max(1, _AT_ONCE // wide)
        parts = zip(weights.cpu().split(most), table.cpu().split(most), strict=True)
        return torch.cat([self._of(w, t) for w, t in parts]).to(weights)

    def _of(self, weights: Tensor, table: Tensor) -> Tensor:
        left = (1 - weights).unsqueeze(2) * self.samples  # [M, s, 1] of a generator's samples that are not drawn
        # the chance that none of 0, 1, 2, … given samples is drawn
        each = ((left - self._i) / (self.samples - self._i)).clamp(min=0)
        missed = torch.cat([torch.ones_like(left), each.cumprod(2)], 2)  # [M, s, most + 1]
        nobody = missed.gather(2, self.hits[table]).prod(1)  # [M, R]
        return (1 - nobody).sum(1) * self.scale


class InformationScore:
    """Inception or classifier score: exp of the information between sample and class, all samples in one split.

    >>> score = InformationScore(torch.eye(2).double(), torch.zeros(2).double())  # each generator makes one class, clearly
    >>> score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 1]])).tolist()
    [1.0, 2.0]
    """

    def __init__(self, share: Tensor, entropy: Tensor) -> None:
        """The mean of p(y | x) [G, K], and of its entropy [G]."""
        self.share, self.entropy = share.double().nan_to_num(0.0).cpu(), entropy.double().nan_to_num(0.0).cpu()

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        own, of = weights.cpu(), table.cpu()
        mixed = (own.unsqueeze(1) @ self.share[of]).squeeze(1)  # [M, K]
        result: Tensor = (torch.special.entr(mixed).sum(1) - (own * self.entropy[of]).sum(1)).exp().to(weights)
        return result


class MeanScore:
    """The mean of several, as IFID is that of the distances within each class."""

    def __init__(self, each: Sequence[MixtureScorer]) -> None:
        self.each = each

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        return torch.stack([score(weights, table) for score in self.each]).mean(0)


class OwnScore:
    """A user's function of the features of a mixture's generators, their weights and the data's features; less is better.

    >>> far = lambda features, weights, real: abs(weights @ features.mean((1, 2)) - real.mean())
    >>> score = OwnScore("mine:far", far, torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]]), torch.tensor([[3.0]]))
    >>> score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [1, 0]])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, name: str, function: Function, features: Tensor, real: Tensor) -> None:
        """`features` float32 [G, n, F], `real` float32 [m, F]."""
        self.name, self.function = name, function
        self.features, self.real = features.nan_to_num(0.0).cpu().numpy(), real.cpu().numpy()
        self.real.setflags(write=False)  # what one call changed, the next would see
        self._near: dict[tuple[int, ...], np.ndarray] = {}  # a search asks for the same generators again and again

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        rows = zip(weights.cpu().numpy(), table.cpu().numpy(), strict=True)
        # those with a weight alone: no filling
        found = [self._of(own[own > 0], tuple(of[own > 0].tolist())) for own, of in rows]
        return torch.tensor(found, dtype=torch.float64).to(weights)

    def _of(self, weights: np.ndarray, of: tuple[int, ...]) -> float:
        if of not in self._near:
            if len(self._near) > 64:
                self._near.clear()
            self._near[of] = self.features[list(of)]
            self._near[of].setflags(write=False)
        try:
            found = float(self.function(self._near[of], weights, self.real))
        except Exception as error:  # whatever the user's function raises
            why = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
            raise UserError(f"the score {self.name} failed: {why.rstrip('.')}.") from error
        return float("inf") if np.isnan(found) else found
