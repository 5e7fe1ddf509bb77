"""KID: the squared maximum mean discrepancy of features under a polynomial kernel; unbiased also for few samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.data.keyed_random import shuffle
from ganherd.features.material import ScoringContext
from ganherd.metrics.groups import FeatureGroup, entries, wanted_groups
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import few_of
from ganherd.util.meter import Progress, TimeLeft, timed

SUBSETS = 100
SIZE = 1000  # of a subset, as in the paper; smaller if there are fewer than five times as many samples
PARTS = 5
WITHIN = 250  # of a subset of one class or member


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Return the unbiased estimate of the squared discrepancy between features [m, d] and [n, d].

    >>> same = torch.eye(3)
    >>> discrepancy(same, same).item() < 0  # an unbiased estimate of 0 may be negative
    True
    """
    return _witnessed(x, y)[0]


def _witnessed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the estimate of `discrepancy`, and the contribution of each row of x to it [m].

    The contribution of a row is its mean kernel with the other rows of x minus its mean kernel with the rows of y.
    """
    xx, yy, xy = (kernel(a, b) for a, b in ((x, x), (y, y), (x, y)))
    m, n = len(x), len(y)
    within_x = (xx.sum(1) - xx.diagonal()) / (m - 1)
    within_y = (yy.sum() - yy.diagonal().sum()) / (n * (n - 1))
    return within_x.mean() + within_y - 2 * xy.mean(), within_x - xy.mean(1)


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return the polynomial kernel (x · y / d + 1)³ of all pairs of rows [m, n]."""
    return (x @ y.T / x.shape[1] + 1) ** 3


@dataclass(frozen=True)
class Kid:
    """KID (`value`) as a mean over random subsets: their standard deviation, their size, and the standard error of the mean."""

    value: float
    std: float
    size: int
    error: float


def kid(
    x: Tensor,
    y: Tensor,
    seed: int = 0,
    subsets: int = SUBSETS,
    size: int | None = None,
    progress: Progress | None = None,
) -> Kid:
    """Return KID of generated features [n, d] against real ones [m, d].

    The error is that of redrawn samples, while the data is fixed. To first order each sample contributes 2 / n times the
    difference of its mean kernels to the samples and to the data, so the variance of that difference gives the error. The
    choice of the subsets adds its own variance.
    """
    size = size or max(2, min(SIZE, min(len(x), len(y)) // PARTS))
    estimates, clock = [], TimeLeft(progress, "KID of subsets", subsets)
    nearer, times = (torch.zeros(len(x), dtype=torch.float64, device=x.device) for _ in range(2))
    for subset in range(subsets):
        clock.at(subset)
        own, other = (
            torch.from_numpy(shuffle(len(f), name, seed, subset)[:size]).to(f.device)
            for f, name in ((x, "kid x"), (y, "kid y"))
        )
        value, each = _witnessed(x[own].double(), y[other].double())
        estimates.append(value)
        nearer[own] += each
        times[own] += 1
    values = torch.stack(estimates)
    if subsets == 1:
        return Kid(float(values.mean()), math.nan, size, math.nan)
    spread = (nearer / times)[times > 0].var()
    error = torch.sqrt(4 * spread / len(x) + values.var() / subsets)
    return Kid(float(values.mean()), float(values.std()), size, float(error))


def within(groups: list[FeatureGroup], seed: int, progress: Progress | None = None) -> list[float]:
    """Return the KID of every group, from fewer and smaller subsets than that of all samples."""
    out = []
    for group in timed(groups, progress, "KID of groups"):
        size = max(2, min(WITHIN, min(len(group.fake), len(group.real)) // PARTS))
        out.append(kid(group.fake.x, group.real.x, seed, subsets=20, size=size).value)
    return out


def measure(material: ScoringContext) -> ScoreEntry:
    """Measure KID of the samples of the mixture, and of the groups that --per asks for."""
    fake, reference = material.features, material.reference
    real = reference.real
    out: ScoreEntry = {"value": None, **reference.described(fake)}
    if (fewest := min(len(fake), len(real))) < 2:
        return {**out, "warning": "KID needs at least two samples: ask for more"}
    score = kid(fake.x, real.x, material.seed, progress=material.progress)
    out |= {"value": score.value, "std": score.std, "subsets": SUBSETS, "subset_size": score.size}
    if math.isfinite(score.error):
        out["interval"] = intervals.around(score.value, score.error, "influence of each sample")
    if material.per:
        groups = wanted_groups(material)
        out |= entries(material.per, groups, within(groups, material.seed, material.progress))
    if fewest < 100:
        out["warning"] = f"{few_of(fewest, 'samples')}: the interval is wide"
    return out
