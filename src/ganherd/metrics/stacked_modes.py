"""Count the modes of stacked MNIST that samples show: three digits as red, green and blue make 1,000 modes.

The setting of VEEGAN and PacGAN: 26,000 samples; a mode is captured by one of them; KL of the modes' shares from equal ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ganherd.metrics.modes import reverse_kl
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.util.meter import timed

if TYPE_CHECKING:
    from ganherd.features.classifier import Classifier
    from ganherd.features.material import ScoringContext
    from ganherd.util.meter import Progress

SAMPLES = 26_000
Classify = Callable[[np.ndarray], np.ndarray]  # uint8 [n, 1, H, W] to int64 [n] in 0 … 9


@dataclass(frozen=True)
class StackedCoverage:
    """Modes of 1,000 that were seen, and the KL of their shares from equal ones."""

    captured: int
    kl: float  # nats
    by_chance: float  # about the KL that this many perfect draws show
    samples: int
    counts: np.ndarray  # int64 [1000]


def stacked_coverage(x: np.ndarray, classify: Classify, block: int = 4096) -> StackedCoverage:
    """Return the coverage of stacked images uint8 [n, 3, H, W]; each channel is read by a classifier of grey digits."""
    if x.ndim != 4 or x.shape[1] != 3 or not len(x):
        raise UserError(f"stacked digits are images [n, 3, H, W], not {list(x.shape)}.")
    modes = np.concatenate([triple(x[i : i + block], classify) for i in range(0, len(x), block)])
    return stacked_counts(np.bincount(modes, minlength=1000))


def stacked_counts(counts: np.ndarray) -> StackedCoverage:
    """Return the coverage from the number of samples of each mode [1000].

    >>> stacked_counts(np.full(1000, 26)).captured, round(stacked_counts(np.eye(1000)[0] * 26).kl, 3)
    (1000, 6.908)
    """
    n, weights = int(counts.sum()), np.full(len(counts), 1 / len(counts))
    # a plug-in KL of n draws is too large by about (modes - 1) / 2n
    return StackedCoverage(int((counts > 0).sum()), reverse_kl(counts, weights), (len(counts) - 1) / (2 * n), n, counts)


def triple(x: np.ndarray, classify: Classify) -> np.ndarray:
    """Return the mode 0 … 999 of each stacked image [n]: its three digits, read one by one."""
    n, _, height, width = x.shape
    digits = np.asarray(classify(x.reshape(n * 3, 1, height, width))).reshape(n, 3)
    return np.asarray(digits @ np.array([100, 10, 1]))


def measure(material: ScoringContext, samples: int = SAMPLES) -> ScoreEntry:
    """Measure a run with the setting's number of samples, also for each member if requested; a set with all its samples."""
    from ganherd.features.material import MetricSkipped

    if len(material.dataset.shape) != 3 or material.dataset.shape[0] != 3:
        raise MetricSkipped("stacked digits are images of three channels, and this is other data")
    judge = reader(material.dataset.shape, material.progress)
    if material.has_generators:
        material.report(f"drawing {samples:,} samples")
        x = material.mixture.sample(samples, seed=material.seed, replica=material.replica).x
    else:
        x = material.drawn.x
    covered = stacked_coverage(x, judge.predict)
    out: ScoreEntry = {
        "value": covered.captured,
        "of": 1000,
        "interval": intervals.captured(covered.counts, covered.samples, material.seed),
        "kl": covered.kl,
        "by_chance": covered.by_chance,
        **judge.described(covered.samples),
    }
    if covered.samples < samples:
        out["warning"] = f"the setting has {samples:,} samples; {covered.samples:,} show fewer modes by chance alone"
    return out | (_each(material, judge, samples) if material.per in ("member", "neighbourhood") else {})


def _each(material: ScoringContext, judge: Classifier, samples: int) -> ScoreEntry:
    """Return modes and KL of every member or neighbourhood, each from the full number of samples: fewer show fewer modes."""
    from ganherd.metrics.groups import in_groups, mixtures_of

    per, covered = str(material.per), {}
    mixtures = mixtures_of(material, per)
    for number in timed(list(mixtures), material.progress, f"modes of each {per}"):
        x = mixtures[number].sample(samples, seed=material.seed, replica=material.replica).x
        covered[number] = stacked_coverage(x, judge.predict)
    out = in_groups(
        per, {k: one.captured for k, one in covered.items()}, {k: one.samples for k, one in covered.items()}
    )
    kl = {k: one.kl for k, one in covered.items()}
    if per == "neighbourhood":
        out["per_neighbourhood_kl"] = kl
    else:
        out["per_member_kl"] = kl
        best = max(covered, key=lambda k: (covered[k].captured, -covered[k].kl))
        out |= {"mean_member": float(np.mean([one.captured for one in covered.values()])), "best_member": int(best)}
        out["mean_member_kl"] = float(np.mean([one.kl for one in covered.values()]))
    return out


def reader(shape: tuple[int, ...], progress: Progress | None = None) -> Classifier:
    """Return the classifier that reads one channel: of MNIST at this size, or, of 8 pixels, of scikit-learn's digits."""
    from ganherd.data.dataset import load
    from ganherd.features.classifier import classifier_for
    from ganherd.features.material import MetricSkipped
    from ganherd.recipe.schema import DataConfig

    side = shape[1]
    if shape[1] != shape[2]:
        raise MetricSkipped(f"stacked digits are square, and these images are {shape[1]} × {shape[2]}")
    settings = (
        DataConfig(source="digits") if side == 8 else DataConfig(source="mnist", size=None if side == 28 else side)
    )
    try:
        return classifier_for(load(settings), progress=progress)
    except UserError as why:
        raise MetricSkipped(f"a classifier of MNIST reads the channels; {why}") from why
