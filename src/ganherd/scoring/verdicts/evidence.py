"""Measure the evidence for a verdict: how samples differ from real data, in units of how real data differs from itself.

Every statistic has a yardstick: the same statistic of real rows against other real rows, of the same number and in the same
features. So limits mean the same on other data, and with more or fewer samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.data.keyed_random import shuffle
from ganherd.features.extract import moments
from ganherd.metrics.frechet import distance
from ganherd.metrics.memorisation import BY_CHANCE, below, nearest
from ganherd.metrics.statistics.redraws import rounding

SPLITS = 4  # random halves of the real rows, over which the statistics are averaged
NEIGHBOURS = 5
MOST_REGIONS, IN_REGION, RARE = 20, 12, 0.2  # see `missing_share`
MOST = 512  # samples, and real rows, of a comparison: more would cost time and change no verdict
MOST_TRAINING = 20_000  # training rows among which copies are searched
FEWEST_HELD_OUT = 10  # rows; with fewer, copies cannot be recognised
MAIN = 0.5  # share of the variance of the data that its main directions hold
END = 0.25  # share of the data at one end of a main direction
MOST_REPEATS = 0.5  # share of real rows with an equal one, above which the distance to the nearest row says nothing
FEATURES = 64  # dimensions that larger images are projected to before copies are searched


@dataclass(frozen=True)
class Evidence:
    """What is known about some samples. None: it could not be measured."""

    samples: int
    real: int  # training rows that they are compared with
    compared: int = 0  # rows on each side of a comparison
    finite: bool = True  # False: the generator returns NaN or infinity
    # Excess of the Fréchet distance over that of real rows from each other, by the variance of the real rows: the mean of the
    # data has 1. It is the larger of the values for the network's features and for pixels.
    distance: float | None = None
    fid: float | None = None  # in the network's features
    real_fid: float | None = None  # of real rows from other real rows, equally many
    precision: float | None = None  # samples that lie where the data is, by the same share of real rows
    coverage: float | None = None  # data that has a sample near it, by the same share for real rows
    recall: float | None = None
    # share of the data in regions, or at the end of a main direction, that samples hardly reach
    missing: float | None = None
    spread: float | None = None  # standard deviation of pixels or coordinates by the data's
    main_spread: float | None = None  # the same along the main directions of the data
    # distance of a sample to its nearest other sample, by that of real rows; None if most real rows have an equal one
    variety: float | None = None
    detail: float | None = None  # differences between neighbouring pixels by the data's; points have none
    copies: float | None = None  # share of samples that look like copies of one training row; 0.05 is chance
    # how often a sample is nearer to the training rows than held-out rows are; 0.5 is chance
    nearer: float | None = None
    copied: int = 0  # training rows that have such copies
    held_out: int = 0  # held-out rows that copies are calibrated with
    # samples that the classifier sees as their class; without one, samples whose nearest real row has their class
    recognised: float | None = None
    recognised_real: float | None = None  # the same of real rows: held-out ones, or each without itself


@dataclass(frozen=True)
class RealRows:
    """Real rows that samples are compared with: their features by the network, and the rows themselves."""

    features: Tensor  # float [n, d]
    x: np.ndarray  # [n, …] in the units of the data, rows in standardised columns
    held_out: np.ndarray  # [h, …] rows that were not trained on


def compare(features: Tensor, x: np.ndarray, real: RealRows, key: int = 0) -> Evidence:
    """Return the evidence about samples x [n, …] with these features [n, d].

    Args:
        key: Chooses the random halves.
    """
    n, count = len(x), len(real.x)
    size = min(n, count // 2, MOST)
    copies, nearer, copied = _copies(x, real)
    if size <= 2 * NEIGHBOURS:
        return Evidence(n, count, size, copies=copies, nearer=nearer, copied=copied, held_out=len(real.held_out))
    spaces = [(features.double().cpu(), real.features.double().cpu())]
    flat, flat_real = pixels(x), pixels(real.x)
    if flat.shape[1:] != spaces[0][0].shape[1:] or not torch.equal(flat, spaces[0][0]):
        spaces.append((flat, flat_real))
    each = [_against_halves(fake, data, size, key) for fake, data in spaces]
    distances = [one["distance"] for one in each]
    return Evidence(
        samples=n,
        real=count,
        compared=size,
        distance=max(distances),
        fid=each[0]["fid"],
        real_fid=each[0]["real_fid"],
        precision=min(one["precision"] for one in each),
        coverage=min(one["coverage"] for one in each),
        recall=min(one["recall"] for one in each),
        missing=max(missing_end(flat, flat_real), *(one["missing"] for one in each)),
        spread=_ratio(_spread(x), _spread(real.x)),
        main_spread=main_spread(flat, flat_real),
        variety=min((one["variety"] for one in each if one["repeats"] <= MOST_REPEATS), default=None),
        detail=_ratio(_detail(x), _detail(real.x)) if x.ndim == 4 else None,
        copies=copies,
        nearer=nearer,
        copied=copied,
        held_out=len(real.held_out),
    )


def _against_halves(fake: Tensor, real: Tensor, size: int, key: int) -> dict[str, float]:
    """Return the statistics of samples against real rows, averaged over random halves, relative to those of real rows."""
    scale = float(moments(real).cov.trace()) or 1.0
    sums: dict[str, list[float]] = {}
    for split in range(SPLITS):
        order = torch.from_numpy(shuffle(len(real), "halves of the real rows", key, split))
        a, b = real[order[:size]], real[order[size : 2 * size]]
        own = fake[torch.from_numpy(shuffle(len(fake), "samples of a verdict", key, split)[:size])]
        values, yard = _statistics(own, a), _statistics(b, a)
        for name in values:
            sums.setdefault(name, []).append(values[name])
            sums.setdefault(f"real_{name}", []).append(yard[name])
    mean = {name: float(np.mean(values)) for name, values in sums.items()}
    out = {
        name: mean[name] / max(mean[f"real_{name}"], 1e-12) for name in ("precision", "coverage", "recall", "variety")
    }
    out["distance"] = max(0.0, mean["fid"] - mean["real_fid"]) / scale
    out["missing"] = missing_share(
        fake, real[torch.from_numpy(shuffle(len(real), "regions of the data", key)[: 4 * MOST])]
    )
    return out | {"fid": mean["fid"], "real_fid": mean["real_fid"], "repeats": mean["real_repeats"]}


def _statistics(fake: Tensor, real: Tensor) -> dict[str, float]:
    """Compare equally many samples and real rows.

    Returns:
        Fréchet distance, precision, coverage, recall, the typical distance of a sample to the nearest other one, and the share
        of samples that have an equal one.
    """
    within, among, between = torch.cdist(real, real), torch.cdist(fake, fake), torch.cdist(real, fake)
    real_radius = within.kthvalue(NEIGHBOURS + 1, dim=1).values
    fake_radius = among.kthvalue(NEIGHBOURS + 1, dim=1).values
    to_nearest = among.fill_diagonal_(torch.inf).min(1).values
    return {
        "fid": float(distance(moments(fake), moments(real))),
        "precision": float((between <= real_radius[:, None]).any(0).double().mean()),
        "coverage": float((between.min(1).values <= real_radius).double().mean()),
        "recall": float((between <= fake_radius[None, :]).any(1).double().mean()),
        "variety": float(to_nearest.mean()),
        "repeats": float((to_nearest.square() <= rounding(fake, to_nearest)).double().mean()),
    }


def missing_share(fake: Tensor, real: Tensor) -> float:
    """Return the share of real rows in regions where samples are at most `RARE` as frequent as real rows.

    Regions are clusters of the real rows, found by k-means, in which at least `IN_REGION` samples are expected on average.

    >>> x = torch.arange(400.0)[:, None] % 2 + torch.arange(400.0)[:, None] / 1e4
    >>> missing_share(x, x), missing_share(x[::2], x)
    (0.0, 0.5)
    """
    regions = min(MOST_REGIONS, len(fake) // IN_REGION, len(real) // IN_REGION)
    if regions < 2:
        return 0.0
    centres = real[:1]
    for _ in range(regions - 1):  # each new centre is the row that is furthest from all centres so far, outliers aside
        far = torch.cdist(real, centres).min(1).values
        centres = torch.cat([centres, real[far.kthvalue(int(0.98 * (len(real) - 1)) + 1).indices][None]])
    for _ in range(10):
        nearest_centre = torch.cdist(real, centres).argmin(1)
        counts = torch.bincount(nearest_centre, minlength=regions).clamp(min=1)
        centres = torch.zeros_like(centres).index_add_(0, nearest_centre, real) / counts[:, None]
    shares = [
        torch.bincount(torch.cdist(rows, centres).argmin(1), minlength=regions).double() / len(rows)
        for rows in (real, fake)
    ]
    share = float(shares[0][shares[1] <= RARE * shares[0]].sum())
    return share if share * len(fake) >= 2 * IN_REGION else 0.0  # a small region may be empty by chance


def pixels(x: np.ndarray, side: int = 8) -> Tensor:
    """Return images averaged down to at most 8 × 8 pixels and flattened, or points, as float64 [n, d]."""
    values = torch.from_numpy(np.asarray(x, np.float32))
    if values.ndim == 4:
        sides = (min(values.shape[2], side), min(values.shape[3], side))
        values = torch.nn.functional.adaptive_avg_pool2d(values, sides)
    return values.flatten(1).double()


def _spread(x: np.ndarray) -> float:
    return float(np.asarray(x, np.float32).reshape(len(x), -1).std(0, dtype=np.float64).mean())


def main_spread(fake: Tensor, real: Tensor) -> float | None:
    """Return the spread of samples [n, d] along the main directions of real rows [m, d], as a share of theirs.

    Noise is spread over all directions, so that noise on top of one image does not count as variation. Variation beyond the
    data's does not make up for directions that are missing. None if the real rows do not vary.

    >>> real = torch.randn(500, 20, generator=torch.Generator().manual_seed(0)) * torch.linspace(9, 0, 20)
    >>> noise = torch.randn(500, 20, generator=torch.Generator().manual_seed(1))
    >>> round(main_spread(real, real), 3), round(main_spread(noise, real), 1)
    (1.0, 0.1)
    """
    directions = _main_directions(real)
    own, data = ((rows.double() @ directions).var(0) for rows in (fake, real))
    return _ratio(float(torch.minimum(own, data).sum().sqrt()), float(data.sum().sqrt()))


def missing_end(fake: Tensor, real: Tensor) -> float:
    """Return the share of real rows at one end of a main direction if samples hardly reach any such end; otherwise 0.

    Clusters do not show this in many dimensions, because each of them extends along the direction.

    >>> x = torch.randn(400, 9, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0] + [1.0] * 8)
    >>> missing_end(x, x), missing_end(x[x[:, 0] < 1], x)
    (0.0, 0.25)
    """
    directions = _main_directions(real)
    own, data = (rows.double() @ directions for rows in (fake, real))
    low, high = data.quantile(END, 0), data.quantile(1 - END, 0)
    least = torch.stack([(own <= low).double().mean(0), (own >= high).double().mean(0)]).min()
    return END if least <= RARE * END and END * len(fake) >= 2 * IN_REGION else 0.0


def _main_directions(real: Tensor) -> Tensor:
    """Return the first principal directions of rows [m, d] that together hold the share `MAIN` of the variance, [d, k]."""
    values, vectors = torch.linalg.eigh(moments(real).cov)  # ascending
    held_by_larger = values.flip(0).cumsum(0).flip(0) - values
    directions: Tensor = vectors[:, held_by_larger < MAIN * values.sum().clamp(min=1e-300)]
    return directions


def _detail(x: np.ndarray) -> float:
    """Return the mean difference between neighbouring pixels: small for blurred images, large for noise."""
    values = np.asarray(x, np.float32)
    down, right = np.abs(np.diff(values, axis=2)), np.abs(np.diff(values, axis=3))
    return float((down.mean() if down.size else 0.0) + (right.mean() if right.size else 0.0))


def _ratio(value: float, real: float) -> float | None:
    """Return value / real; None if real is 0."""
    return value / real if real > 0 else None


def _copies(x: np.ndarray, real: RealRows) -> tuple[float | None, float | None, int]:
    """Return (share of copies, how often a sample is nearer to the training rows than a held-out row, number of rows copied).

    Returns (None, None, 0) if there are too few held-out or training rows to recognise copies.
    """
    if len(real.held_out) < FEWEST_HELD_OUT or len(real.x) < 3:
        return None, None, 0
    training, held, fake = (_projected(rows) for rows in (real.x[:MOST_TRAINING], real.held_out, x[:MOST]))
    near, fresh = nearest(fake, training), nearest(held, training)
    line = float(np.quantile(fresh.relative, BY_CHANCE))
    copies = (near.relative < line) if line > 0 else (near.relative == 0)
    return float(copies.mean()), below(near.distance[:, 0], fresh.distance[:, 0]), len(np.unique(near.index[copies, 0]))


def _projected(rows: np.ndarray) -> np.ndarray:
    """Return rows [n, d] of at most `FEATURES` numbers; a random projection preserves the distances of larger ones."""
    flat = np.asarray(rows, np.float32).reshape(len(rows), -1)
    if flat.shape[1] <= FEATURES:
        return flat
    mixing = np.random.default_rng(flat.shape[1]).standard_normal((flat.shape[1], FEATURES), np.float32)
    return np.asarray(flat @ mixing / np.float32(FEATURES**0.5))
