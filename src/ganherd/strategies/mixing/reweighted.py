"""Scores of mixtures that are computed from a few numbers of each generator.

Each takes weights [M, s] and a table [M, s] of generators, like every `mixing.MixtureScorer`.
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


class WorstIfBroken:
    """Another score, but the worst possible value for mixtures that give weight to a broken generator.

    >>> score = WorstIfBroken(LinearScore(torch.tensor([0.5, 0.75, 1.0])), torch.tensor([False, False, True]), -torch.inf)
    >>> score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [0, 2]])).tolist()
    [0.625, 0.5]
    >>> score(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 2]])).item()
    -inf
    """

    def __init__(self, score: MixtureScorer, broken: Tensor, worst: float) -> None:
        """Wrap a score; `broken` bool [G] marks generators with NaN."""
        self._score, self._broken, self._worst = score, broken, worst

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        is_broken = ((weights > 0) & self._broken.to(weights.device)[table]).any(1)
        return self._score(weights, table).masked_fill(is_broken, self._worst)


class LinearScore:
    """A mean over samples, such as precision, density or label accuracy, from its value for each generator [G].

    >>> LinearScore(torch.tensor([0.0, 1.0]))(torch.tensor([[0.25, 0.75]]).double(), torch.tensor([[0, 1]])).item()
    0.75
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.double().nan_to_num(0.0).cpu()

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        return (weights.cpu() * self.values[table.cpu()]).sum(1).to(weights)


class CapturedScore:
    """The expected number of R places that are hit by n samples: w·n of each generator's n, drawn without replacement.

    The expectation is smooth in the weights. For a single generator it is exactly what its samples hit. Places are modes, or,
    for coverage, balls around real samples.

    >>> score = CapturedScore(torch.tensor([[2, 0], [0, 1]]), samples=2)  # two hit the first place, one of two the second
    >>> score(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1]] * 3)).tolist()
    [1.0, 1.0, 1.5]
    """

    def __init__(self, hits: Tensor, samples: int, share: bool = False) -> None:
        """Prepare the counts.

        Args:
            hits: int64 [G, R], the number of each generator's samples in each place.
            samples: The number n of samples of each generator.
            share: Return the share of all places instead of their number.
        """
        self.hits, self.samples = hits.long().cpu(), samples
        self.scale = 1.0 / hits.shape[1] if share else 1.0
        self._i = torch.arange(int(self.hits.max()) if self.hits.numel() else 0, dtype=torch.float64)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        wide = table.shape[1] * max(self.hits.shape[1], len(self._i) + 1)
        most = max(1, _AT_ONCE // wide)
        chunks = zip(weights.cpu().split(most), table.cpu().split(most), strict=True)
        return torch.cat([self._expected_hits(chunk, rows) for chunk, rows in chunks]).to(weights)

    def _expected_hits(self, weights: Tensor, table: Tensor) -> Tensor:
        """Return the scores of some mixtures [M]."""
        left = (1 - weights).unsqueeze(2) * self.samples  # [M, s, 1] samples of a generator that are not drawn
        # The probability that none of 0, 1, 2, … specific samples is drawn.
        each = ((left - self._i) / (self.samples - self._i)).clamp(min=0)
        missed = torch.cat([torch.ones_like(left), each.cumprod(2)], 2)  # [M, s, most + 1]
        missed_by_all = missed.gather(2, self.hits[table]).prod(1)  # [M, R]
        return (1 - missed_by_all).sum(1) * self.scale


class InformationScore:
    """Inception or classifier score: exp of the mutual information between sample and class, with all samples in one split.

    >>> score = InformationScore(torch.eye(2).double(), torch.zeros(2).double())  # each generator makes one class
    >>> score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 1]])).tolist()
    [1.0, 2.0]
    """

    def __init__(self, share: Tensor, entropy: Tensor) -> None:
        """Take the mean of p(y | x) [G, K], and the mean of its entropy [G]."""
        self.share, self.entropy = share.double().nan_to_num(0.0).cpu(), entropy.double().nan_to_num(0.0).cpu()

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        on_cpu, rows = weights.cpu(), table.cpu()
        mixed = (on_cpu.unsqueeze(1) @ self.share[rows]).squeeze(1)  # [M, K]
        information = torch.special.entr(mixed).sum(1) - (on_cpu * self.entropy[rows]).sum(1)
        result: Tensor = information.exp().to(weights)
        return result


class MeanScore:
    """The mean of several scores; IFID is the mean of the Fréchet distances within each class."""

    def __init__(self, each: Sequence[MixtureScorer]) -> None:
        self.each = each

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        return torch.stack([score(weights, table) for score in self.each]).mean(0)


class OwnScore:
    """A user's function of the features of a mixture's generators, their weights, and the data's features; less is better.

    >>> far = lambda features, weights, real: abs(weights @ features.mean((1, 2)) - real.mean())
    >>> score = OwnScore("mine:far", far, torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]]), torch.tensor([[3.0]]))
    >>> score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [1, 0]])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, name: str, function: Function, features: Tensor, real: Tensor) -> None:
        """Wrap a function; `features` float32 [G, n, F] of all generators, `real` float32 [m, F] of the data."""
        self.name, self.function = name, function
        self.features, self.real = features.nan_to_num(0.0).cpu().numpy(), real.cpu().numpy()
        self.real.setflags(write=False)  # A function must not change the input of later calls.
        self._cache: dict[tuple[int, ...], np.ndarray] = {}  # A search uses the same generators many times.

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        rows = zip(weights.cpu().numpy(), table.cpu().numpy(), strict=True)
        # Only generators with a weight are passed on, so that padding is left out.
        scores = [self._score(row[row > 0], tuple(of[row > 0].tolist())) for row, of in rows]
        return torch.tensor(scores, dtype=torch.float64).to(weights)

    def _score(self, weights: np.ndarray, generators: tuple[int, ...]) -> float:
        """Return the function's value for one mixture; infinite for NaN."""
        if generators not in self._cache:
            if len(self._cache) > 64:
                self._cache.clear()
            self._cache[generators] = self.features[list(generators)]
            self._cache[generators].setflags(write=False)
        try:
            value = float(self.function(self._cache[generators], weights, self.real))
        except Exception as error:  # A user's function may raise anything.
            why = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
            raise UserError(f"the score {self.name} failed: {why.rstrip('.')}.") from error
        return float("inf") if np.isnan(value) else value
