"""Mixture weights, evolved on what is known of each generator's samples: features are computed once and only re-weighted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ganherd.features.moments import Moments, moments
from ganherd.metrics import frechet
from ganherd.util.errors import UserError

_FEW = 256  # features
_AT_ONCE = 1 << 24  # numbers that one evaluation may gather: of 2048 features one mixture at a time


def scored_on(features: int, fast: torch.device) -> torch.device:
    """Where mixtures are scored: few features quickest on a CPU."""
    return torch.device("cpu") if features <= _FEW else fast


class MixtureScorer(Protocol):
    """How far mixtures are from the data, less is better: weights [M, s] of the generators that a table [M, s] names.

    The answer lies where the weights do, wherever the score computes.
    """

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor: ...  # float64 [M]


@dataclass(frozen=True)
class Summary:
    """What a score needs of G generators: moments of their features, shares of the classes seen in their samples."""

    mean: Tensor | None = None  # float64 [G, F]
    cov: Tensor | None = None  # float64 [G, F, F], of the samples at hand: divided by n
    samples: Tensor | None = None  # float64 [G], n of each
    classes: Tensor | None = None  # float64 [G, K], sums to 1
    aim: Mapping[str, Tensor] = field(default_factory=dict)  # [G, …] what another score needs, as `aims` names it


def summarise(
    features: Iterable[Tensor] | None = None, predicted: Iterable[Tensor] | None = None, classes: int = 0
) -> Summary:
    """Of each generator its features [n, F], or the classes [n] that a classifier saw, or both.

    >>> summarise(predicted=torch.tensor([[0, 2, 2, 2], [1, 1, 0, 0]]), classes=3).classes.tolist()
    [[0.25, 0.0, 0.75], [0.5, 0.5, 0.0]]
    """
    mean = cov = samples = shares = None
    if features is not None:
        each, counts = [], []
        for x in features:
            if len(x) < 2:
                raise UserError(
                    f"a mixture's Fréchet distance needs at least 2 samples of each generator, not {len(x)}."
                )
            each.append(moments(x))
            counts.append(len(x))
        samples = torch.tensor(counts, dtype=torch.float64, device=each[0].mean.device)
        mean = torch.stack([one.mean for one in each])
        cov = torch.stack([one.cov for one in each]).mul_(((samples - 1) / samples)[:, None, None])
    if predicted is not None:
        shares = _shares([y.long() for y in predicted], classes)
    return Summary(mean, cov, samples, shares)


def _shares(predicted: Sequence[Tensor], classes: int) -> Tensor:
    """[G, K] of each the shares of the classes; all at once where they are of as many samples."""
    if len({len(y) for y in predicted}) > 1:
        return torch.cat([_shares([y], classes) for y in predicted])
    of = torch.stack(list(predicted))  # [G, n]
    counts = torch.zeros(len(of), classes, dtype=torch.float64, device=of.device)
    return counts.scatter_add_(1, of, torch.ones_like(of, dtype=torch.float64)) / of.shape[1]


class FrechetScore:
    """The Fréchet distance of mixtures from the data, in closed form.

    A mixture's covariance is the weighted, unbiased one (numpy's `cov(aweights=…)`), so that a single generator, and
    generators of equal weight, have exactly the distance of their pooled features. All is turned by the root of the data's
    covariance beforehand; one evaluation is then a weighted sum and the eigenvalues of F × F: microseconds for the 10
    features of the small MNIST classifier, but a second or more on one core for Inception's 2048.

    >>> x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    >>> score = FrechetScore(summarise(x), Moments(torch.tensor([3.0]).double(), torch.tensor([[4.0]]).double()))
    >>> pooled = frechet.distance(moments(x.reshape(4, 1)), score.real)
    >>> bool(torch.isclose(score(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 1]]))[0], pooled))
    True
    """

    def __init__(self, summary: Summary, real: Moments) -> None:
        if summary.mean is None or summary.cov is None or summary.samples is None:
            raise ValueError("the summary has no features")
        self.real, self.samples = real, summary.samples
        root = frechet._root(real.cov)
        mean = summary.mean - real.mean  # about the data's mean, so that little cancels
        # a generator that is no number must not stop the others' eigenvalues: it counts as infinitely far
        self.broken = ~(mean.isfinite().all(1) & summary.cov.isfinite().flatten(1).all(1))  # [G]
        self.mean = mean.masked_fill(self.broken[:, None], 0)  # [G, F]
        # row by row, and below without products over all mixtures: their rounding would depend on how many generators and cells a
        # rank has, and the roots of eigenvalues near zero make 1e-8 of it
        self.turned = torch.stack([row @ root for row in self.mean])  # [G, F]
        second = torch.empty_like(summary.cov)  # [G, F, F] E[x xᵀ], turned
        for cov, turned, out in zip(summary.cov, self.turned, second, strict=True):
            out.copy_(root @ cov @ root + torch.outer(turned, turned))
        self.second = second.masked_fill_(self.broken[:, None, None], 0)
        trace = summary.cov.diagonal(dim1=1, dim2=2).sum(1).masked_fill(self.broken, 0)
        self.square = trace + self.mean.square().sum(1)  # [G] E|x|²
        self.real_trace = real.cov.trace()

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        most = max(1, _AT_ONCE // (table.shape[1] * self.second[0].numel()))
        own, of = weights.to(self.second), table.to(self.second.device)
        parts = [self._distance(w, t) for w, t in zip(own.split(most), of.split(most), strict=True)]
        return torch.cat(parts).to(weights)

    def _distance(self, weights: Tensor, table: Tensor) -> Tensor:
        row = weights.unsqueeze(2)  # [M, s, 1]
        mean, turned = ((row * of[table]).sum(1) for of in (self.mean, self.turned))  # [M, F]
        second = self.second[table].mul_(row.unsqueeze(3)).sum(1)  # [M, F, F]; in place: the copy is all that fits
        # what n samples, weighted so, hide of the true spread
        unbiased = 1 / (1 - (weights.square() / self.samples[table]).sum(1))  # [M]
        cov = (second - turned.unsqueeze(2) * turned.unsqueeze(1)) * unbiased[:, None, None]
        shift = mean.square().sum(1)
        trace = ((weights * self.square[table]).sum(1) - shift) * unbiased
        shared = torch.linalg.eigvalsh(cov).clamp(min=0).sqrt().sum(1)
        distance = shift + trace + self.real_trace - 2 * shared
        result: Tensor = distance.masked_fill(_touched(weights, self.broken[table]), torch.inf)
        return result


class VariationScore:
    """The total variation distance (TVD) of mixtures' classes from the data's shares [K].

    >>> score = VariationScore(Summary(classes=torch.eye(2).double()), torch.tensor([0.5, 0.5]))
    >>> score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 1]])).tolist()
    [0.5, 0.0]
    """

    def __init__(self, summary: Summary, real: Tensor | np.ndarray) -> None:
        if summary.classes is None:
            raise ValueError("the summary has no classes")
        self.classes = summary.classes
        self.real = torch.as_tensor(real).to(self.classes)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        own, of = weights.to(self.classes), table.to(self.classes.device)
        mixed = (own.unsqueeze(1) @ self.classes[of]).squeeze(1)  # [M, K]
        return ((mixed - self.real).abs().sum(1) / 2).to(weights)


def _touched(weights: Tensor, broken: Tensor) -> Tensor:
    return ((weights > 0) & broken).any(1)


# -- (1+1)-ES ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evolved:
    """Weights [M, s] and the score of the best weights before the first and after every generation."""

    weights: Tensor  # float64 [M, s], sums to 1
    history: Tensor  # float64 [generations + 1, M]

    @property
    def scores(self) -> Tensor:
        return self.history[-1]


def evolve(
    weights: Tensor,
    table: Tensor,
    score: MixtureScorer,
    sigma: float,
    generations: int,
    draws: Callable[[int], Tensor],
) -> Evolved:
    """(1+1)-ES of all M mixtures at once: w' = clip(w + N(0, σ²), 0, ∞) / sum, kept where it is strictly better.

    `draws(generation)` answers standard normal numbers, float64 [M, s]. Filling of the table stays at weight 0.
    """
    real = entries(table)
    history = [score(weights, table)]
    for generation in range(generations):
        moved = (weights + sigma * draws(generation)).clamp(min=0) * real
        total = moved.sum(1, keepdim=True)
        moved = torch.where(total > 0, moved / total, weights)
        found = score(moved, table)
        better = found < history[-1]  # false where there is no number
        weights = torch.where(better[:, None], moved, weights)
        history.append(torch.where(better, found, history[-1]))
    return Evolved(weights, torch.stack(history))


def entries(table: Tensor) -> Tensor:
    """bool [M, s]: which entries of a topology's table are members; filling repeats the first.

    >>> entries(torch.tensor([[0, 1, 2], [1, 0, 1]])).tolist()
    [[True, True, True], [True, True, False]]
    """
    real = table != table[:, :1]
    real[:, 0] = True
    return real


def uniform(table: Tensor) -> Tensor:
    """The same weight for every member of a neighbourhood, float64 [M, s].

    >>> uniform(torch.tensor([[0, 1, 2, 3], [1, 0, 1, 1]])).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]
    """
    real = entries(table).double()
    return real / real.sum(1, keepdim=True)


def spread(weights: Tensor, table: Tensor, generators: int) -> Tensor:
    """The same mixtures as weights of all generators, [M, G].

    >>> spread(torch.tensor([[0.25, 0.75]]), torch.tensor([[2, 0]]), 4).tolist()
    [[0.75, 0.0, 0.25, 0.0]]
    """
    return weights.new_zeros(len(weights), generators).scatter_add_(1, table, weights)
