"""Score and evolve mixture weights. Features of each generator's samples are computed once and only re-weighted."""

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
_AT_ONCE = 1 << 24  # numbers that one evaluation may gather; with 2048 features, one mixture at a time


def scored_on(features: int, fast: torch.device) -> torch.device:
    """Return the device to score mixtures on: with few features the CPU is fastest."""
    return torch.device("cpu") if features <= _FEW else fast


class MixtureScorer(Protocol):
    """A function that scores M mixtures."""

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        """Return the scores, float64 [M], on the device of the weights.

        Args:
            weights: float64 [M, s], of the generators in `table`.
            table: int64 [M, s], the generators of each mixture.
        """
        ...


@dataclass(frozen=True)
class Summary:
    """Statistics of G generators for scores: moments of their features, and shares of the classes of their samples."""

    mean: Tensor | None = None  # float64 [G, F]
    cov: Tensor | None = None  # float64 [G, F, F], divided by n, not by n - 1
    samples: Tensor | None = None  # float64 [G], the number of samples of each
    classes: Tensor | None = None  # float64 [G, K], sums to 1
    objective: Mapping[str, Tensor] = field(default_factory=dict)  # [G, …] as `Objective.measure` returns them


def summarise(
    features: Iterable[Tensor] | None = None, predicted: Iterable[Tensor] | None = None, classes: int = 0
) -> Summary:
    """Return the statistics of generators.

    Args:
        features: The features of each generator's samples [n, F].
        predicted: The classes that a classifier predicts for each generator's samples [n].
        classes: The number of classes.

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
    """Return the share of each class [G, K]; computed at once if all generators have the same number of samples."""
    if len({len(y) for y in predicted}) > 1:
        return torch.cat([_shares([y], classes) for y in predicted])
    labels = torch.stack(list(predicted))  # [G, n]
    counts = torch.zeros(len(labels), classes, dtype=torch.float64, device=labels.device)
    return counts.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64)) / labels.shape[1]


class FrechetScore:
    """The Fréchet distance between mixtures and data, in closed form.

    A mixture's covariance is the weighted, unbiased one (numpy's `cov(aweights=…)`), so that a single generator, and
    generators of equal weight, have exactly the distance of their pooled features. Moments are multiplied by the root of the
    data's covariance in advance. One evaluation is then a weighted sum and the eigenvalues of an F × F matrix: microseconds
    for the 10 features of the small MNIST classifier, but a second or more on one core for Inception's 2048.

    >>> x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    >>> score = FrechetScore(summarise(x), Moments(torch.tensor([3.0]).double(), torch.tensor([[4.0]]).double()))
    >>> pooled = frechet.distance(moments(x.reshape(4, 1)), score.real)
    >>> bool(torch.isclose(score(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 1]]))[0], pooled))
    True
    """

    def __init__(self, summary: Summary, real: Moments) -> None:
        """Prepare the moments of G generators for the data's moments `real`."""
        if summary.mean is None or summary.cov is None or summary.samples is None:
            raise ValueError("the summary has no features")
        self.real, self.samples = real, summary.samples
        root = frechet._root(real.cov)
        mean = summary.mean - real.mean  # centred on the data, to lose little precision
        # A generator with NaN must not spoil the eigenvalues of others; its distance is infinite.
        self.broken = ~(mean.isfinite().all(1) & summary.cov.isfinite().flatten(1).all(1))  # [G]
        self.mean = mean.masked_fill(self.broken[:, None], 0)  # [G, F]
        # Computed row by row, and below without products over all mixtures: their rounding would depend on the number of
        # generators and cells of a rank, and roots of eigenvalues near zero amplify it to 1e-8.
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
        chunks = zip(weights.to(self.second).split(most), table.to(self.second.device).split(most), strict=True)
        return torch.cat([self._distance(chunk, rows) for chunk, rows in chunks]).to(weights)

    def _distance(self, weights: Tensor, table: Tensor) -> Tensor:
        """Return the distances of some mixtures [M]."""
        row = weights.unsqueeze(2)  # [M, s, 1]
        mean, turned = ((row * moment[table]).sum(1) for moment in (self.mean, self.turned))  # [M, F]
        second = self.second[table].mul_(row.unsqueeze(3)).sum(1)  # [M, F, F]; in place, to need memory for one copy
        # Corrects the bias of a covariance that is estimated from weighted samples.
        unbiased = 1 / (1 - (weights.square() / self.samples[table]).sum(1))  # [M]
        cov = (second - turned.unsqueeze(2) * turned.unsqueeze(1)) * unbiased[:, None, None]
        shift = mean.square().sum(1)
        trace = ((weights * self.square[table]).sum(1) - shift) * unbiased
        shared = torch.linalg.eigvalsh(cov).clamp(min=0).sqrt().sum(1)
        distance = shift + trace + self.real_trace - 2 * shared
        result: Tensor = distance.masked_fill(_uses_broken(weights, self.broken[table]), torch.inf)
        return result


class VariationScore:
    """The total variation distance (TVD) between the class shares of mixtures and those of the data.

    >>> score = VariationScore(Summary(classes=torch.eye(2).double()), torch.tensor([0.5, 0.5]))
    >>> score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 1]])).tolist()
    [0.5, 0.0]
    """

    def __init__(self, summary: Summary, real: Tensor | np.ndarray) -> None:
        """Compare the classes of G generators with the data's shares `real` [K]."""
        if summary.classes is None:
            raise ValueError("the summary has no classes")
        self.classes = summary.classes
        self.real = torch.as_tensor(real).to(self.classes)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        shares = self.classes[table.to(self.classes.device)]  # [M, s, K]
        mixed = (weights.to(self.classes).unsqueeze(1) @ shares).squeeze(1)  # [M, K]
        return ((mixed - self.real).abs().sum(1) / 2).to(weights)


def _uses_broken(weights: Tensor, broken: Tensor) -> Tensor:
    """Return bool [M], True for mixtures that give weight to a broken generator."""
    return ((weights > 0) & broken).any(1)


# -- (1+1)-ES ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evolved:
    """The weights of M mixtures after an evolution, and their scores."""

    weights: Tensor  # float64 [M, s], sums to 1
    history: Tensor  # float64 [generations + 1, M], the scores before the first and after every generation

    @property
    def scores(self) -> Tensor:
        """Return the final scores [M]."""
        return self.history[-1]


def evolve(
    weights: Tensor,
    table: Tensor,
    score: MixtureScorer,
    sigma: float,
    generations: int,
    draws: Callable[[int], Tensor],
    cost: Callable[[Tensor], Tensor] = torch.clone,
) -> Evolved:
    """Run a (1+1)-ES on all M mixtures at once: w' = clip(w + N(0, σ²), 0, ∞) / sum replaces w if it costs strictly less.

    Args:
        weights: The first weights [M, s].
        table: The generators of each mixture [M, s]; padding keeps weight 0.
        score: The score of mixtures.
        sigma: The standard deviation σ of a step.
        generations: The number of steps.
        draws: Returns standard normal numbers, float64 [M, s], for a generation.
        cost: Returns a number to minimise for each score; by default, the score itself.
    """
    real = entries(table)
    history = [score(weights, table)]
    for generation in range(generations):
        moved = (weights + sigma * draws(generation)).clamp(min=0) * real
        total = moved.sum(1, keepdim=True)
        moved = torch.where(total > 0, moved / total, weights)
        scores = score(moved, table)
        better = cost(scores) < cost(history[-1])  # False for NaN.
        weights = torch.where(better[:, None], moved, weights)
        history.append(torch.where(better, scores, history[-1]))
    return Evolved(weights, torch.stack(history))


def entries(table: Tensor) -> Tensor:
    """Return bool [M, s], False for entries of a table that are padding, which repeats the first entry.

    >>> entries(torch.tensor([[0, 1, 2], [1, 0, 1]])).tolist()
    [[True, True, True], [True, True, False]]
    """
    real = table != table[:, :1]
    real[:, 0] = True
    return real


def uniform(table: Tensor) -> Tensor:
    """Return equal weights for the generators of each mixture, float64 [M, s].

    >>> uniform(torch.tensor([[0, 1, 2, 3], [1, 0, 1, 1]])).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]
    """
    real = entries(table).double()
    return real / real.sum(1, keepdim=True)


def spread(weights: Tensor, table: Tensor, generators: int) -> Tensor:
    """Return the weights of mixtures over all generators [M, G].

    >>> spread(torch.tensor([[0.25, 0.75]]), torch.tensor([[2, 0]]), 4).tolist()
    [[0.75, 0.0, 0.25, 0.0]]
    """
    return weights.new_zeros(len(weights), generators).scatter_add_(1, table, weights)
