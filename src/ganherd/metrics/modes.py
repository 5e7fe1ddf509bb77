"""Mode coverage where the modes are known: 2-D mixtures of Gaussians, by distance.

The protocol of VEEGAN and PacGAN: 2,500 points; a point is of high quality within 3 standard deviations of its nearest
mode (each axis by its own); a mode is captured by one such point; the reverse KL is that of the modes' shares among the
points of high quality from the modes' weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ganherd.data.readers.synthetic import TOYS
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress, timed
from ganherd.util.text import text_table

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.material import ScoringContext
    from ganherd.mixture.mixture import Mixture

POINTS = 2500  # of the protocol; fewer points capture fewer modes by chance alone
WITHIN = 3.0  # standard deviations
THIN = 0.2  # of its share of the samples: a mode with less is captured by the protocol, but hardly represented


@dataclass(frozen=True)
class Modes:
    """Known modes: centres, standard deviations by axis, weights that sum to one."""

    means: np.ndarray  # [M, d]
    stds: np.ndarray  # [M, d]
    weights: np.ndarray  # [M]
    about: str  # which mixture this is: rings of other radii are another task


@dataclass(frozen=True)
class Coverage:
    """How a set of samples covers known modes."""

    captured: int
    modes: int
    high_quality: float  # share of all samples
    reverse_kl: float | None  # nats; None where no sample is of high quality
    counts: np.ndarray  # int64 [M] samples of high quality of each mode
    # bool [M]: a mode has more samples than the tails of its neighbours give it; in R15, where modes touch, one is not enough
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
    if dataset.is_image or not dataset.labels:
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


def coverage(x: np.ndarray, modes: Modes, within: float = WITHIN) -> Coverage:
    """Return the modes captured, share of high quality and reverse KL of points [n, d].

    >>> ring = toy_modes("ring8")
    >>> print(coverage(ring.means[:4].repeat(5, 0), ring))
    4 of 8 modes, 100.0 % high quality, reverse KL 0.69
    """
    if not len(x):
        raise UserError("mode coverage needs at least one sample.")
    nearest, distance = assign(x, modes)
    counts = np.bincount(nearest[distance < within], minlength=len(modes.means))
    captured, good = int((counts > 0).sum()), int(counts.sum())
    kl = reverse_kl(counts, modes.weights) if good else None
    represented = counts >= np.maximum(1, THIN * modes.weights * len(x))
    return Coverage(captured, len(counts), good / len(x), kl, counts, represented, len(x))


def coverage_by_member(x: np.ndarray, member: np.ndarray, modes: Modes) -> dict[int, Coverage]:
    """Return the coverage of each member's own samples, by the member's number."""
    return {int(m): coverage(x[member == m], modes) for m in np.unique(member)}


def mixture_coverage(
    mixture: Mixture,
    modes: Modes,
    samples: int = POINTS,
    seed: int = 0,
    replica: int = 0,
    progress: Progress | None = None,
) -> tuple[Coverage, dict[int, Coverage]]:
    """Return the coverage of the mixture and of each member, each from this many samples."""
    whole = coverage(mixture.sample(samples, seed=seed, replica=replica).x, modes)
    each = {}
    members = len(mixture.label_of)
    for m in timed(range(members), progress, "coverage of members"):
        alone = dataclasses.replace(mixture, weights=np.eye(members)[m])
        each[m] = coverage(alone.sample(samples, seed=seed, replica=replica).x, modes)
    return whole, each


def reverse_kl(counts: np.ndarray, weights: np.ndarray) -> float:
    """Return the KL from the shares of the counts to the weights, in nats: Σ p log(p / w).

    >>> reverse_kl(np.array([3, 3]), np.array([0.5, 0.5]))
    0.0
    """
    p = counts / counts.sum()
    seen = p > 0
    return max(0.0, float((p[seen] * np.log(p[seen] / weights[seen])).sum()))


def table(rows: Sequence[tuple[str, Coverage]]) -> str:
    """Format coverages as lines of text, each with its samples.

    >>> ring = toy_modes("ring8")
    >>> print(table([("mixture", coverage(ring.means, ring))]))
    of       modes   with a share  high quality  reverse KL  samples
    mixture  8 of 8  8             100.0 %       0.00        8
    """
    lines = [("of", "modes", "with a share", "high quality", "reverse KL", "samples")]
    for name, covered in rows:
        kl = "–" if covered.reverse_kl is None else f"{covered.reverse_kl:.2f}"
        share = f"{100 * covered.high_quality:.1f} %"
        modes, shared = f"{covered.captured} of {covered.modes}", str(int(covered.represented.sum()))
        lines.append((name, modes, shared, share, kl, f"{covered.samples:,}"))
    return "\n".join(text_table(lines))


def entry(covered: Coverage, modes: Modes, seed: int = 0) -> ScoreEntry:
    """Return what scores.json holds of a coverage."""
    return {
        "value": covered.captured,
        "of": covered.modes,
        "interval": intervals.captured(covered.counts, covered.samples, seed),
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

    try:
        modes = modes_of(material.dataset)
    except UserError as why:
        raise MetricSkipped(str(why)) from why
    if not material.has_generators:
        out = entry(coverage(material.free.x, modes), modes, material.seed)
        if out["samples"] < POINTS:
            out["warning"] = (
                f"the protocol has {POINTS:,} points; {out['samples']:,} capture fewer modes by chance alone"
            )
        return out
    whole, each = mixture_coverage(
        material.mixture, modes, POINTS, material.seed, material.replica, progress=material.progress
    )
    best = max(each, key=lambda m: (each[m].captured, each[m].high_quality))
    return entry(whole, modes, material.seed) | {
        "per_member": {str(m): one.captured for m, one in each.items()},
        "per_member_samples": {str(m): one.samples for m, one in each.items()},
        "per_member_high_quality": {str(m): one.high_quality for m, one in each.items()},
        "mean_member": float(np.mean([one.captured for one in each.values()])),
        "best_member": best,
        **_of_neighbourhoods(material, modes),
    }


def _of_neighbourhoods(material: ScoringContext, modes: Modes) -> ScoreEntry:
    """Return the coverage of every neighbourhood's own mixture, each from the same number of points."""
    from ganherd.metrics.groups import in_groups

    if material.per != "neighbourhood":
        return {}
    values, counts = {}, {}
    for number, one in enumerate(material.neighbourhoods or ()):
        weights = np.zeros(len(material.mixture.label_of))
        weights[list(one.members)] = 1.0 if one.weights is None else np.asarray(one.weights)
        mixture = dataclasses.replace(material.mixture, weights=weights / weights.sum())
        covered = coverage(mixture.sample(POINTS, seed=material.seed, replica=material.replica).x, modes)
        values[str(number)], counts[str(number)] = covered.captured, covered.samples
    return in_groups("neighbourhood", values, counts)
