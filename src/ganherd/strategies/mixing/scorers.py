"""Score mixtures of generators quickly for many different weights.

Statistics of each generator's samples are computed once. A scorer then computes the score of a mixture from its weights
and these statistics, without new samples. In shapes, G is the number of generators, M of mixtures, s of entries
(generators) in a mixture, F of features, K of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ganherd.features.extract import Moments, moments
from ganherd.metrics import frechet
from ganherd.util.errors import UserError

_FEW = 256  # with at most this many features, mixtures are scored on the CPU
# Most numbers that `FrechetScore` gathers at once; with 2048 features, this is one mixture at a time.
_MOMENTS_AT_ONCE = 1 << 24
_HITS_AT_ONCE = 1 << 23  # most numbers that `CapturedScore` gathers at once
Function = Callable[[np.ndarray, np.ndarray, np.ndarray], float]  # (features [s, n, F], weights [s], real [m, F])


def scored_on(features: int, fast: torch.device) -> torch.device:
    """Return the device to score mixtures on: the CPU with few features, for which it is faster, otherwise `fast`."""
    return torch.device("cpu") if features <= _FEW else fast


class MixtureScorer(Protocol):
    """A function that scores M mixtures."""

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        """Return the scores of M mixtures, float64 [M], on the device of the weights.

        Args:
            weights: float64 [M, s], the weight of each generator in `table`; each row sums to 1.
            table: int64 [M, s], the numbers of the generators of each mixture.
        """
        ...


def fill_broken(scores: Tensor, weights: Tensor, broken: Tensor, worst: float) -> Tensor:
    """Return the scores with the worst value in place of those of mixtures that contain a broken generator.

    Args:
        scores: The scores of M mixtures [M].
        weights: The weights of their generators [M, s]; a generator of weight 0 does not matter.
        broken: bool [M, s], True for generators whose samples contain NaN or infinity.
        worst: The worst value.
    """
    result: Tensor = scores.masked_fill(((weights > 0) & broken).any(1), worst)
    return result


def worst_if_broken(score: MixtureScorer, broken: Tensor, worst: float) -> MixtureScorer:
    """Return a scorer like `score`, which returns `worst` for mixtures that contain a broken generator.

    `broken` is bool [G], True for generators whose samples contain NaN or infinity. Those of weight 0 do not matter.

    >>> score = worst_if_broken(linear(torch.tensor([0.5, 0.75, 1.0])), torch.tensor([False, False, True]), -torch.inf)
    >>> score(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 2], [0, 2]])).tolist()
    [0.625, 0.5, -inf]
    """
    return lambda weights, table: fill_broken(score(weights, table), weights, broken.to(weights.device)[table], worst)


@dataclass(frozen=True)
class MixtureGroup:
    """Some of the mixtures in a table, which share a scorer, e.g. those of one class."""

    mixtures: Tensor  # int64, the rows of these mixtures in the table
    generators: Tensor  # int64, ascending: the numbers of all generators that occur in these mixtures
    score: MixtureScorer  # scores these mixtures; it numbers `generators` from 0


def grouped(groups: Sequence[MixtureGroup]) -> MixtureScorer:
    """Return a scorer of all mixtures in a table that scores each with the scorer of its group.

    >>> first = MixtureGroup(torch.tensor([1]), torch.tensor([4, 6]), linear(torch.tensor([0.0, 1.0])))
    >>> other = MixtureGroup(torch.tensor([0]), torch.tensor([2, 3]), linear(torch.tensor([8.0, 0.0])))
    >>> score = grouped([first, other])
    >>> score(torch.tensor([[0.5, 0.5], [0.25, 0.75]]).double(), torch.tensor([[2, 3], [4, 6]])).tolist()
    [4.0, 0.75]
    """

    def score(weights: Tensor, table: Tensor) -> Tensor:
        scores = torch.empty(len(weights), dtype=torch.float64, device=weights.device)
        for group in groups:
            own = torch.searchsorted(group.generators, table[group.mixtures])
            scores[group.mixtures] = group.score(weights[group.mixtures], own)
        return scores

    return score


# -- FID and TVD ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Statistics of the samples of G generators, from which mixtures are scored."""

    mean: Tensor  # float64 [G, F], the mean of the features
    cov: Tensor  # float64 [G, F, F], their covariance, divided by the number n of samples, not by n - 1
    samples: Tensor  # float64 [G], the number of samples of each generator
    classes: Tensor | None = None  # float64 [G, K], the share of each predicted class; None: no classes are predicted
    # The measurements that the recipe's objective needs, by name, each [G, …]; see `Objective.measure`
    objective: Mapping[str, Tensor] = field(default_factory=dict)

    def of(self, generators: Tensor) -> Summary:
        """Return the statistics of the generators with these numbers."""
        mean, cov, samples = (value[generators.to(value.device)] for value in (self.mean, self.cov, self.samples))
        classes = None if self.classes is None else self.classes[generators.to(self.classes.device)]
        objective = {name: value[generators.to(value.device)] for name, value in self.objective.items()}
        return Summary(mean, cov, samples, classes, objective)


def summarise(
    features: Iterable[Tensor], classes: Tensor | None = None, objective: Mapping[str, Tensor] | None = None
) -> Summary:
    """Compute the moments of each generator's features, and return them as a `Summary`.

    Args:
        features: For each generator the features of its samples [n, F], with n of at least 2.
        classes: Passed on to the summary.
        objective: Passed on to the summary.
    """
    each, counts = [], []
    for x in features:
        if len(x) < 2:
            raise UserError(f"a mixture's Fréchet distance needs at least 2 samples of each generator, not {len(x)}.")
        each.append(moments(x))
        counts.append(len(x))
    samples = torch.tensor(counts, dtype=torch.float64, device=each[0].mean.device)
    cov = torch.stack([one.cov for one in each]).mul_(((samples - 1) / samples)[:, None, None])
    return Summary(torch.stack([one.mean for one in each]), cov, samples, classes, objective or {})


def class_shares(predicted: Iterable[Tensor], classes: int) -> Tensor:
    """Return the share of each of K classes among the samples of each generator, float64 [G, K].

    Args:
        predicted: For each generator the predicted class of each sample, int64 [n].
        classes: The number K of classes.

    >>> class_shares(torch.tensor([[0, 2, 2, 2], [1, 1, 0, 0]]), 3).tolist()
    [[0.25, 0.0, 0.75], [0.5, 0.5, 0.0]]
    """
    return torch.stack([torch.bincount(y, minlength=classes).double() / len(y) for y in predicted])


class FrechetScore:
    """A scorer by the Fréchet distance (FID) between mixtures and data, computed from moments; less is better.

    The covariance of a mixture is the weighted, unbiased one (numpy's `cov(aweights=…)`). So a single generator, and
    generators of equal weight, have exactly the distance of their pooled features. The distance needs the trace of the
    root of R C R, for the root R of the data's covariance and the covariance C of the mixture. All moments are
    multiplied by R in advance, because R is the same for all weights. One evaluation is then a weighted sum and the
    eigenvalues of an F × F matrix: microseconds for the 10 features of the small MNIST classifier, but a second or more
    on one core for Inception's 2048.

    >>> x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
    >>> score = FrechetScore(summarise(x), Moments(torch.tensor([3.0]).double(), torch.tensor([[4.0]]).double()))
    >>> pooled = frechet.distance(moments(x.reshape(4, 1)), score.real)
    >>> bool(torch.isclose(score(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 1]]))[0], pooled))
    True
    """

    def __init__(self, summary: Summary, real: Moments) -> None:
        """Precompute what does not depend on the weights.

        Args:
            summary: The moments of the features of G generators.
            real: The moments of the features of the data.
        """
        self.real, self.samples = real, summary.samples
        root = frechet._root(real.cov)
        mean = summary.mean - real.mean  # centred on the data, to lose little precision
        # Zeros replace the moments of a generator with NaN, which would spoil the eigenvalues of all; its distance is
        # infinite.
        self.broken = ~(mean.isfinite().all(1) & summary.cov.isfinite().flatten(1).all(1))  # [G]
        self.mean = mean.masked_fill(self.broken[:, None], 0)  # [G, F]
        # One product for each generator, and below no product over all mixtures: the rounding of a larger product would
        # depend on the number of generators and cells of a rank, and roots of eigenvalues near zero amplify the
        # difference to 1e-8.
        self.turned = torch.stack([row @ root for row in self.mean])  # [G, F], the means times the root R
        second = torch.empty_like(summary.cov)  # [G, F, F], second moments E[x xᵀ] with R on both sides
        for cov, turned, out in zip(summary.cov, self.turned, second, strict=True):
            out.copy_(root @ cov @ root + torch.outer(turned, turned))
        self.second = second.masked_fill_(self.broken[:, None, None], 0)
        trace = summary.cov.diagonal(dim1=1, dim2=2).sum(1).masked_fill(self.broken, 0)
        self.square = trace + self.mean.square().sum(1)  # [G], E|x|² without R
        self.real_trace = real.cov.trace()

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        most = max(1, _MOMENTS_AT_ONCE // (table.shape[1] * self.second[0].numel()))
        chunks = zip(weights.to(self.second).split(most), table.to(self.second.device).split(most), strict=True)
        return torch.cat([self._distance(chunk, rows) for chunk, rows in chunks]).to(weights)

    def _distance(self, weights: Tensor, table: Tensor) -> Tensor:
        """Return the distances of M mixtures [M], few enough to fit into memory, from weights and table [M, s]."""
        row = weights.unsqueeze(2)  # [M, s, 1]
        mean, turned = ((row * moment[table]).sum(1) for moment in (self.mean, self.turned))  # [M, F]
        second = self.second[table].mul_(row.unsqueeze(3)).sum(1)  # [M, F, F]; in place, to need memory for one copy
        # The factor corrects the bias of a covariance that is estimated from weighted samples (by N / (N - 1)
        # for N samples of equal weight).
        unbiased = 1 / (1 - (weights.square() / self.samples[table]).sum(1))  # [M]
        cov = (second - turned.unsqueeze(2) * turned.unsqueeze(1)) * unbiased[:, None, None]
        shift = mean.square().sum(1)
        trace = ((weights * self.square[table]).sum(1) - shift) * unbiased
        shared = torch.linalg.eigvalsh(cov).clamp(min=0).sqrt().sum(1)
        distance = shift + trace + self.real_trace - 2 * shared
        return fill_broken(distance, weights, self.broken[table], torch.inf)


class VariationScore:
    """A scorer by the total variation distance (TVD) between class shares of mixtures and data; less is better.

    >>> score = VariationScore(torch.eye(2).double(), torch.tensor([0.5, 0.5]))
    >>> score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 1]])).tolist()
    [0.5, 0.0]
    """

    def __init__(self, classes: Tensor, real: Tensor) -> None:
        """Store the class shares of G generators, float64 [G, K], and of the data, [K]."""
        self.classes, self.real = classes, real.to(classes)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        shares = self.classes[table.to(self.classes.device)]  # [M, s, K]
        mixed = (weights.to(self.classes).unsqueeze(1) @ shares).squeeze(1)  # [M, K]
        return ((mixed - self.real).abs().sum(1) / 2).to(weights)


# -- other scores -----------------------------------------------------------------------------------------------------


def linear(values: Tensor) -> MixtureScorer:
    """Return a scorer for a score that is a mean over samples, such as precision.

    The score of a mixture is the weighted mean of its generators' scores, which `values` [G] holds.

    >>> linear(torch.tensor([0.0, 1.0]))(torch.tensor([[0.25, 0.75]]).double(), torch.tensor([[0, 1]])).item()
    0.75
    """
    known = values.double().nan_to_num(0.0).cpu()
    return lambda weights, table: (weights.cpu() * known[table.cpu()]).sum(1).to(weights)


def information(share: Tensor, entropy: Tensor) -> MixtureScorer:
    """Return a scorer for the classifier score, exp(I) with the mutual information I between sample x and class y.

    I is the entropy of the mixture's mean class probabilities minus the mean entropy of single samples. (The inception
    score is this score with the Inception network.) More is better.

    Args:
        share: [G, K], the mean of the class probabilities p(y | x) over each generator's samples.
        entropy: [G], the mean entropy of p(y | x) over each generator's samples, in nats.

    >>> score = information(torch.eye(2), torch.zeros(2))  # each generator makes one class
    >>> score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1], [0, 1]])).tolist()
    [1.0, 2.0]
    """
    shares, entropies = share.double().nan_to_num(0.0).cpu(), entropy.double().nan_to_num(0.0).cpu()

    def score(weights: Tensor, table: Tensor) -> Tensor:
        on_cpu, rows = weights.cpu(), table.cpu()
        mixed = (on_cpu.unsqueeze(1) @ shares[rows]).squeeze(1)  # [M, K]
        nats: Tensor = torch.special.entr(mixed).sum(1) - (on_cpu * entropies[rows]).sum(1)
        return nats.exp().to(weights)

    return score


class CapturedScore:
    """A scorer by the expected number of places, of R, that n samples of the mixture hit; more is better.

    A place is hit if it contains at least one sample. Places are modes of the data or, for coverage, balls around real
    samples. A mixture's n samples consist of w · n samples of each generator of weight w, drawn without replacement
    from the n samples that the generator has. This expectation is smooth in the weights, and for a single generator it
    is exactly the number of places that its samples hit.

    >>> score = CapturedScore(torch.tensor([[2, 0], [0, 1]]), samples=2)  # two hit the first place, one of two the second
    >>> score(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).double(), torch.tensor([[0, 1]] * 3)).tolist()
    [1.0, 1.0, 1.5]
    """

    def __init__(self, hits: Tensor, samples: int, share: bool = False) -> None:
        """Store how many samples of each generator lie in each place.

        Args:
            hits: int64 [G, R], the number of each generator's samples in each place.
            samples: The number n of samples of each generator.
            share: Score by the share of places that are hit, instead of their number.
        """
        self.hits, self.samples = hits.long().cpu(), samples
        self.scale = 1.0 / hits.shape[1] if share else 1.0
        self._i = torch.arange(int(self.hits.max()) if self.hits.numel() else 0, dtype=torch.float64)

    def __call__(self, weights: Tensor, table: Tensor) -> Tensor:
        wide = table.shape[1] * max(self.hits.shape[1], len(self._i) + 1)
        most = max(1, _HITS_AT_ONCE // wide)
        chunks = zip(weights.cpu().split(most), table.cpu().split(most), strict=True)
        return torch.cat([self._expected_hits(chunk, rows) for chunk, rows in chunks]).to(weights)

    def _expected_hits(self, weights: Tensor, table: Tensor) -> Tensor:
        """Return the scores of M mixtures [M], few enough to fit into memory, from weights and table [M, s]."""
        left = (1 - weights).unsqueeze(2) * self.samples  # [M, s, 1] samples of a generator that are not drawn
        # Entry h of `missed` is the probability that none of a generator's h samples in a place is drawn.
        each = ((left - self._i) / (self.samples - self._i)).clamp(min=0)
        missed = torch.cat([torch.ones_like(left), each.cumprod(2)], 2)  # [M, s, most + 1]
        missed_by_all = missed.gather(2, self.hits[table]).prod(1)  # [M, R]
        return (1 - missed_by_all).sum(1) * self.scale


class OwnScore:
    """A scorer by a user's function; less is better.

    The function takes the features of a mixture's generators, their weights, and the features of the data.

    >>> far = lambda features, weights, real: abs(weights @ features.mean((1, 2)) - real.mean())
    >>> score = OwnScore("mine:far", far, torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]]), torch.tensor([[3.0]]))
    >>> score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [1, 0]])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, name: str, function: Function, features: Tensor, real: Tensor) -> None:
        """Store the function and its inputs.

        Args:
            name: The name of the function, for messages.
            function: Takes (features [s, n, F], weights [s], real [m, F]) and returns a number.
            features: float32 [G, n, F], of n samples of each generator.
            real: float32 [m, F], features of the data.
        """
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
        """Return the function's value for one mixture, of generators with weights [s]; infinity instead of NaN."""
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
