"""Count the modes that samples capture, for 2-D data whose modes are known, such as a ring of Gaussians.

The protocol is that of VEEGAN and PacGAN. It draws 2,500 points. A point is of high quality if it lies within 3 standard
deviations of its nearest mode, and a mode is captured if at least one such point is nearest to it. The reverse KL compares
the shares of the modes among the points of high quality with the weights of the modes in the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.data.readers.synthetic import TOYS
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress, timed

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.material import ScoringContext

POINTS = 2500  # of the protocol; fewer points capture fewer modes by chance
WITHIN = 3.0  # standard deviations
THIN = 0.2  # a mode with less than this part of its expected samples is captured, but not represented


@dataclass(frozen=True)
class Modes:
    """Known modes: centres, standard deviations by axis, weights that sum to one."""

    means: np.ndarray  # [M, d]
    stds: np.ndarray  # [M, d]
    weights: np.ndarray  # [M]
    about: str  # the mixture in words, with its parameters


@dataclass(frozen=True)
class Coverage:
    """How a set of samples covers known modes."""

    captured: int
    modes: int
    high_quality: float  # share of all samples
    reverse_kl: float | None  # in nats; None if no sample is of high quality
    counts: np.ndarray  # int64 [M] samples of high quality of each mode
    # bool [M], True for modes with at least THIN of their expected samples; neighbours that touch a mode can capture it
    represented: np.ndarray
    samples: int

    def __str__(self) -> str:
        kl = "–" if self.reverse_kl is None else f"{self.reverse_kl:.2f}"
        return f"{self.captured} of {self.modes} modes, {100 * self.high_quality:.1f} % high quality, reverse KL {kl}"


def toy_modes(name: str) -> Modes:
    """Return the modes of a toy, which is drawn from them.

    >>> toy_modes("ring8").about
    'ring of 8 Gaussians, radius 1, std 0.01'
    """
    toy = TOYS[name]()
    n = len(toy.means)
    radius = float(np.linalg.norm(toy.means, axis=1).max())
    kinds = {
        "ring8": f"ring of {n} Gaussians, radius {radius:g}, std {toy.std:g}",
        "grid25": f"5 × 5 grid of Gaussians on -4 … 4, std {toy.std:g}",
    }
    return Modes(toy.means, np.full_like(toy.means, toy.std), np.full(n, 1 / n), kinds.get(name, name))


def labelled_modes(x: np.ndarray, y: np.ndarray, about: str) -> Modes:
    """Return the modes of labelled points: the mean, the standard deviation by axis and the share of each label."""
    known = np.unique(y[y >= 0])
    groups = [x[y == k].astype(np.float64) for k in known]
    few = min((len(group) for group in groups), default=0)
    if few < 3:
        raise UserError(f"the modes of {about} cannot be determined: a cluster has {few} labelled points, and needs 3.")
    counts = np.array([len(group) for group in groups])
    return Modes(
        np.stack([group.mean(0) for group in groups]),
        np.stack([group.std(0, ddof=1) for group in groups]),
        counts / counts.sum(),
        about,
    )


def modes_of(dataset: Dataset) -> Modes:
    """Return the modes of 2-D data: as drawn (ring8, grid25), or from the labels of all its points.

    R15 may be trained on 100 of its 600 points; its modes are those of all 600.
    """
    if dataset.name in TOYS:
        return toy_modes(dataset.name)
    if dataset.kind != "points" or not dataset.labels:
        raise UserError(f"mode coverage needs 2-D points with known modes, and {dataset.name} has none.")
    if dataset.name == "r15":
        from ganherd.data.dataset import load
        from ganherd.recipe.schema import DataConfig

        dataset = load(DataConfig(source="r15"))
    x, y = np.concatenate([dataset.x, dataset.x_test]), np.concatenate([dataset.y, dataset.y_test])
    about = f"{len(np.unique(y[y >= 0]))} clusters of {dataset.name}, from the labels of {len(x):,} points"
    return labelled_modes(x, y, about)


def assign(x: np.ndarray, modes: Modes) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest mode [n] of each point, and its distance [n] in standard deviations; NaN is infinitely far."""
    off = (np.asarray(x, np.float64)[:, None] - modes.means) / modes.stds  # [n, M, d]
    distance = np.nan_to_num(np.sqrt((off**2).sum(-1)), nan=np.inf)
    nearest = distance.argmin(1)
    return nearest, distance[np.arange(len(x)), nearest]


def coverage(x: np.ndarray, modes: Modes) -> Coverage:
    """Return the modes captured, share of high quality and reverse KL of points [n, d].

    >>> ring = toy_modes("ring8")
    >>> print(coverage(ring.means[:4].repeat(5, 0), ring))
    4 of 8 modes, 100.0 % high quality, reverse KL 0.69
    """
    if not len(x):
        raise UserError("mode coverage needs at least one sample.")
    nearest, distance = assign(x, modes)
    counts = np.bincount(nearest[distance < WITHIN], minlength=len(modes.means))
    captured, good = int((counts > 0).sum()), int(counts.sum())
    kl = reverse_kl(counts, modes.weights) if good else None
    represented = counts >= np.maximum(1, THIN * modes.weights * len(x))
    return Coverage(captured, len(counts), good / len(x), kl, counts, represented, len(x))


def coverages(
    mixtures: Mapping[str, Any],
    modes: Modes,
    samples: int = POINTS,
    seed: int = 0,
    replica: int = 0,
    progress: Progress | None = None,
) -> dict[str, Coverage]:
    """Return the coverage of each mixture, from this many samples of it."""
    each = {}
    for name in timed(list(mixtures), progress, "coverage of mixtures"):
        each[name] = coverage(mixtures[name].sample(samples, seed=seed, replica=replica).x, modes)
    return each


def reverse_kl(counts: np.ndarray, weights: np.ndarray) -> float:
    """Return the KL from the shares of the counts to the weights, in nats: Σ p log(p / w).

    >>> reverse_kl(np.array([3, 3]), np.array([0.5, 0.5]))
    0.0
    """
    p = counts / counts.sum()
    seen = p > 0
    return max(0.0, float((p[seen] * np.log(p[seen] / weights[seen])).sum()))


def captured_by_data(modes: Modes, samples: int) -> ScoreInterval:
    """Return the interval of the number of modes that this many samples of the data itself capture.

    >>> ends = captured_by_data(toy_modes("ring8"), 20)
    >>> round(ends["low"], 1), ends["high"]
    (6.0, 8.0)
    """
    from scipy.special import chdtr

    dimensions = modes.means.shape[1]
    near = float(chdtr(dimensions, WITHIN**2))  # the share of a Gaussian within that many standard deviations
    captured = 1 - (1 - modes.weights * near) ** samples  # the chance of each mode
    reach = 1.96 * math.sqrt(float((captured * (1 - captured)).sum()))
    middle, most = float(captured.sum()), float(len(modes.weights))
    return intervals.interval(max(0.0, middle - reach), most, "normal, for samples of the data")


def entry(covered: Coverage, modes: Modes, seed: int = 0) -> ScoreEntry:
    """Return what scores.json holds of a coverage."""
    return {
        "value": covered.captured,
        "of": covered.modes,
        "interval": intervals.captured(covered.counts, covered.samples, seed),
        "real_interval": captured_by_data(modes, covered.samples),
        "represented": int(covered.represented.sum()),
        "high_quality": covered.high_quality,
        "high_quality_interval": intervals.share(covered.high_quality, covered.samples),
        "reverse_kl": covered.reverse_kl,
        "counts": covered.counts.tolist(),
        "samples": covered.samples,
        "network": "coordinates",
        "modes": modes.about,
        "within": f"{WITHIN:g} standard deviations of the nearest mode",
    }


def measure(material: ScoringContext) -> ScoreEntry:
    """Measure the coverage of the mixture and of each member, always from the protocol's number of points."""
    from ganherd.features.material import MetricSkipped
    from ganherd.metrics.groups import in_groups, mixtures_of

    try:
        modes = modes_of(material.dataset)
    except UserError as why:
        raise MetricSkipped(str(why)) from why
    if not material.has_generators:
        out = entry(coverage(material.drawn.x, modes), modes, material.seed)
        if out["samples"] < POINTS:
            out["warning"] = (
                f"the protocol has {POINTS:,} points; {out['samples']:,} capture fewer modes by chance alone"
            )
        return out
    drawn = POINTS, material.seed, material.replica
    whole = coverages({"all": material.mixture}, modes, *drawn)["all"]
    each = coverages(mixtures_of(material, "member"), modes, *drawn, material.progress)
    best = max(each, key=lambda m: (each[m].captured, each[m].high_quality))
    out = entry(whole, modes, material.seed) | {
        "per_member": {m: one.captured for m, one in each.items()},
        "per_member_samples": {m: one.samples for m, one in each.items()},
        "per_member_high_quality": {m: one.high_quality for m, one in each.items()},
        "mean_member": float(np.mean([one.captured for one in each.values()])),
        "best_member": int(best),
    }
    if material.per != "neighbourhood":
        return out
    cells = coverages(mixtures_of(material, "neighbourhood"), modes, *drawn)
    values = {number: one.captured for number, one in cells.items()}
    return out | in_groups("neighbourhood", values, {number: one.samples for number, one in cells.items()})
