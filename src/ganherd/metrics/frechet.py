"""FID and IFID: the Fréchet distance between Gaussians fitted to features, of all samples or within each class.

d² = |μ − μ'|² + tr Σ + tr Σ' − 2 tr (Σ^½ Σ' Σ^½)^½, in float64, by eigenvalues of a symmetric product: no `sqrtm`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ganherd.features.extract import ExtractedFeatures, Moments, moments
from ganherd.features.material import ScoringContext
from ganherd.metrics.groups import FeatureGroup, by_class, entries, wanted_groups
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval
from ganherd.util.errors import counted, few
from ganherd.util.meter import Progress, timed

SURE = 10_000  # FID of fewer samples than this is clearly too high
ENOUGH = 10  # samples per feature; with fewer, the error of the covariance is visible in the distance
REDRAWS = 4  # over which the distance of redrawn data is averaged
MORE_REDRAWS = 20  # for the spread of that distance, if a draw takes milliseconds only
CHEAP_FEATURES, CHEAP_NUMBERS = 128, 1 << 20  # features, and numbers in all rows, up to which it does


def distance(a: Moments, b: Moments) -> Tensor:
    """Return the squared Fréchet distance, float64 [...].

    >>> one, two = (Moments(torch.full((1,), m).double(), torch.full((1, 1), v).double()) for m, v in ((0, 1), (3, 4)))
    >>> distance(one, two).item()
    10.0
    """
    root = _root(b.cov)
    values = torch.linalg.eigvalsh(root @ a.cov @ root).clamp(min=0)
    return _distance(a, b, values)


def _distance(a: Moments, b: Moments, values: Tensor) -> Tensor:
    """Return the distance [...], given the eigenvalues of the product of the two covariances [..., d]; at least 0."""
    traces = (m.cov.diagonal(dim1=-2, dim2=-1).sum(-1) for m in (a, b))
    distances = (a.mean - b.mean).square().sum(-1) + sum(traces) - 2 * values.sqrt().sum(-1)
    return distances.clamp(min=0)  # rounding can make the distance of equal distributions negative


def distance_and_error(x: Tensor, real: Moments) -> tuple[float, float]:
    """Return the squared Fréchet distance of features [n, d] from the real ones, and its standard error over redrawn samples.

    The error is that of the infinitesimal bootstrap: it follows from the derivative of the distance by the weight of each
    sample. The moments of the real features count as exact.
    """
    own = moments(x)
    root = _root(real.cov)
    values, vectors = torch.linalg.eigh(root @ own.cov @ root)
    smallest = max(float(values.max()) * 1e-12, torch.finfo(values.dtype).tiny)  # constant samples have no variance
    inverse = values.clamp(min=smallest).rsqrt()
    transport = root @ (vectors * inverse) @ vectors.T @ root  # the optimal map from the samples to the data
    change = torch.eye(len(root), dtype=root.dtype, device=root.device) - transport
    influence = torch.cat(
        [_influence(part.double() - own.mean, own.mean - real.mean, change) for part in x.split(8192)]
    )
    return float(_distance(own, real, values.clamp(min=0))), float(influence.std() / math.sqrt(len(x)))


def distance_of_few(x: Tensor, real: Moments) -> float:
    """Return the squared Fréchet distance of features [n, d] from the real ones, if there are no more samples than features.

    The eigenvalues that count are then those of a product [n, n], which is smaller than [d, d].
    """
    mean = x.mean(0, dtype=torch.float64)
    factor = (x.double() - mean) / math.sqrt(max(len(x) - 1, 1))  # the covariance is factorᵀ factor
    values = torch.linalg.eigvalsh(factor @ real.cov @ factor.T).clamp(min=0)
    traces = factor.square().sum() + real.cov.trace()
    return max(0.0, float((mean - real.mean).square().sum() + traces - 2 * values.sqrt().sum()))


def _influence(centred: Tensor, shift: Tensor, change: Tensor) -> Tensor:
    """Return the derivative of the distance by the weight of each sample [n].

    Args:
        centred: Features minus their mean [n, d].
        shift: The mean of the samples minus that of the data [d].
        change: The identity minus the optimal transport map from samples to data [d, d].
    """
    return 2 * centred @ shift + ((centred @ change) * centred).sum(1)


def _root(cov: Tensor) -> Tensor:
    """Return the symmetric square root, [..., d, d]; eigenvalues that rounding makes negative count as 0."""
    values, vectors = torch.linalg.eigh(cov)
    result: Tensor = (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mT
    return result


def of_groups(groups: list[FeatureGroup], progress: Progress | None = None) -> list[tuple[float, float | None]]:
    """Return (distance, standard error) of each group.

    The error is None if there are too few samples for a regular covariance, or only one real row, which has no variance.
    """
    distances: list[tuple[float, float | None]] = []
    for group in timed(groups, progress, "Fréchet distances"):
        if len(group.fake) > group.fake.dimension:
            value, error = distance_and_error(group.fake.x, group.real.moments)
            distances.append((value, error if len(group.real) > 1 else None))
        else:
            distances.append((distance_of_few(group.fake.x, group.real.moments), None))
    return distances


def of_redrawn_data(real: ExtractedFeatures, samples: int, seed: int) -> tuple[float, ScoreInterval]:
    """Return the distance that this many draws from the distribution of the data have: what a perfect mixture would show.

    Both sides are resampled, because the data itself is a draw: rows drawn from the data and compared with that same data
    would be nearer to it than new rows are. The result is the mean over `REDRAWS` draws, and the interval that the distance of
    another draw lies in.

    >>> x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> real = ExtractedFeatures(x, None, np.zeros(2000), np.zeros(2000))
    >>> (few, ends), (many, _) = (of_redrawn_data(real, samples, 0) for samples in (200, 20_000))
    >>> ends["high"] > few > many > 0
    True
    """
    rng, distances = np.random.default_rng(seed), []
    is_cheap = real.dimension <= CHEAP_FEATURES and real.dimension * (samples + len(real)) <= CHEAP_NUMBERS
    for _ in range(MORE_REDRAWS if is_cheap else REDRAWS):
        drawn = real.rows(rng.integers(0, len(real), samples)).x
        data = moments(real.rows(rng.integers(0, len(real), len(real))).x)
        few_drawn = samples <= real.dimension
        distances.append(distance_of_few(drawn, data) if few_drawn else float(distance(moments(drawn), data)))
    mean = sum(distances[:REDRAWS]) / REDRAWS
    return mean, intervals.of_draws(distances, f"{len(distances)} draws from the data", mean)


def interval(value: float, error: float | None) -> ScoreEntry:
    """Return the interval of a distance, as an entry of scores.json; empty if there is no finite error."""
    if error is None or not math.isfinite(value) or not math.isfinite(error):
        return {}
    return {"interval": intervals.around(value, error, "infinitesimal bootstrap")}


def measure_fid(material: ScoringContext) -> ScoreEntry:
    """Measure FID of the samples of the mixture, and of the groups that --per asks for."""
    fake, reference = material.features, material.reference
    real = reference.real
    [(value, error)] = of_groups([FeatureGroup("all", fake, real)])
    out: ScoreEntry = {"value": value, **reference.described(fake), **interval(value, error)}
    out["by_chance"], out["real_interval"] = of_redrawn_data(real, len(fake), material.seed)
    if material.per:
        groups = wanted_groups(material)
        out |= entries(material.per, groups, [d for d, _ in of_groups(groups, material.progress)])
    if warning := _too_few(fake, real):
        out["warning"] = warning
    return out


def measure_ifid(material: ScoringContext) -> ScoreEntry:
    """Measure the mean of the Fréchet distances within the classes, and KID within the classes next to it."""
    fake, reference = material.features, material.reference
    groups = by_class(material, fake)
    out: ScoreEntry = {"value": None, **reference.described(fake)}
    if short := _without_covariance(groups):
        return {**out, "warning": f"no value: {short}"}
    each = of_groups(groups, material.progress)
    value = sum(d for d, _ in each) / len(each)
    errors = [e for _, e in each if e is not None]
    error = math.sqrt(sum(e**2 for e in errors)) / len(each) if len(errors) == len(each) else None
    out |= {"value": value, **entries("class", groups, [d for d, _ in each]), **interval(value, error)}
    from ganherd.metrics.kid import within

    kids = within(groups, material.seed, material.progress)
    out["kid"] = {
        "value": sum(kids) / len(kids),
        "per_class": {group.name: kid for group, kid in zip(groups, kids, strict=True)},
    }
    fewest, rows = min(_fewest(group.fake, group.real) for group in groups)
    few_rows = f"a class has only {counted(fewest, rows)} for {counted(fake.dimension, 'features')}"
    if fewest <= fake.dimension:
        out["warning"] = (
            f"{few_rows}, so that its covariance is singular and the distance too high: "
            "read the mean KID within the classes, which is among its details"
        )
    elif fewest < ENOUGH * fake.dimension:
        out["warning"] = (
            f"{few_rows}, and the distance comes out too high: compare it only at the same number, or read the KID next to it"
        )
    return out


def _without_covariance(groups: list[FeatureGroup]) -> str:
    """Return which classes have fewer than two real or generated samples, and what helps; "" if none has."""
    real = [group.name for group in groups if len(group.real) < 2]
    fake = [group.name for group in groups if len(group.fake) < 2]
    out = []
    if real:
        out.append(f"the data has fewer than two of {few(real, 5)}, so add data or leave them out")
    if fake:
        out.append(f"fewer than two were generated of {few(fake, 5)}, so ask for more samples")
    return "; ".join(out)


def _fewest(fake: ExtractedFeatures, real: ExtractedFeatures) -> tuple[int, str]:
    """Return the number of samples, or of real rows if there are fewer of them, and which of the two it is."""
    return min((len(fake), "samples"), (len(real), "real rows"))


def _too_few(fake: ExtractedFeatures, real: ExtractedFeatures) -> str:
    """Return a warning if there are too few samples or real rows for the number of features; otherwise ""."""
    (fewest, rows), d = _fewest(fake, real), fake.dimension
    if fewest <= d:
        more = "ask for more samples, or " if rows == "samples" else ""
        give = "gives" if fewest == 1 else "give"
        return (
            f"{counted(fewest, rows)} for {counted(d, 'features')} {give} a singular covariance and too high a distance: "
            f"{more}read KID next to it"
        )
    wanted = SURE if d >= 1000 else ENOUGH * d
    if fewest < wanted:
        return f"it comes out too high with {counted(fewest, rows)}, fewer than {wanted:,}: compare it only at the same number"
    return ""
