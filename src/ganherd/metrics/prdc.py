"""Precision, recall, density and coverage, from neighbourhoods of the samples and of the data.

Neighbourhood of a point: the ball that reaches to its k-th nearest neighbour of the same kind (Naeem et al. 2020). In discrete
data many distances are equal. A point at the edge of a ball lies in it for precision, recall and coverage, which are shares of
points. Density counts balls instead: with points at their edges it would exceed 1 for the data itself, so they are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.data.keyed_random import shuffle
from ganherd.features.extract import ExtractedFeatures
from ganherd.features.material import MetricSkipped, ScoringContext
from ganherd.metrics.groups import FeatureGroup, entries, wanted_groups
from ganherd.metrics.statistics import intervals, redraws
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval
from ganherd.util.errors import few_of
from ganherd.util.meter import Progress, TimeLeft, timed

NEIGHBOURS = 5
MOST = 10_000  # samples and real rows, as is usual for these scores
CHUNK = 1024  # rows of distances at once
FEW = 1000
TIED = 0.05  # share of the data whose ball has several points at its edge, above which density gets a warning
NAMES = ("precision", "recall", "density", "coverage")


@dataclass(frozen=True)
class PrdcScores:
    """The four scores of some samples."""

    each: dict[str, np.ndarray]  # float64: the values whose mean is the score, of the samples [n] or of the data [m]
    counts: dict[str, redraws.Counts]  # for the standard errors of recall and coverage
    tied: float  # share of the data whose k-th and next neighbour are equally far

    def value(self, name: str) -> float:
        """Return a score of all samples."""
        return float(self.each[name].mean())


def prdc(real: Tensor, fake: Tensor, k: int = NEIGHBOURS, progress: Progress | None = None) -> PrdcScores:
    """Measure samples [n, d] against data [m, d].

    >>> x = torch.arange(20.0)[:, None]
    >>> prdc(x, x, k=2).value("recall")
    1.0
    """
    centre = real.mean(0, dtype=torch.float64)  # distances of points near 0 lose fewer digits
    real, fake = real.double() - centre, fake.double() - centre
    clock = TimeLeft(progress, "neighbourhoods", 3)  # three passes of about the same duration
    inner, outer, tied = edges(real, k)
    clock.at(1)
    near = redraws.nearest(fake, k)
    clock.at(2)
    inside = torch.zeros(len(fake), device=fake.device).double()
    precise = torch.zeros(len(fake), device=fake.device, dtype=torch.bool)
    recalled, covered = redraws.Counts(near), redraws.Counts(near)
    for chunk, below, upto in zip(real.split(CHUNK), inner.split(CHUNK), outer.split(CHUNK), strict=True):
        far = torch.cdist(chunk, fake)  # [chunk, n]
        inside += (far < below[:, None]).sum(0)
        recalled.add(far, near.radius, near.reach)
        precise |= covered.add(far, upto[:, None]).any(0)
    each = {
        "precision": precise.double(),
        "recall": torch.cat(recalled.hit).double(),
        "density": inside / k,
        "coverage": torch.cat(covered.hit).double(),
    }
    counts = {"recall": recalled, "coverage": covered}
    return PrdcScores({name: values.cpu().numpy() for name, values in each.items()}, counts, tied)


def edges(x: Tensor, k: int) -> tuple[Tensor, Tensor, float]:
    """Return two radii of the balls around points x [n, d], and the share of points with several neighbours at the edge.

    Rounding makes equal distances differ slightly. A point lies inside of a ball for certain if it is nearer than the first
    radius [n], and inside or at the edge if it is not farther than the second [n].
    """
    listed = min(k + 2, len(x))
    far = torch.cat([torch.cdist(part, x).topk(listed, largest=False).values for part in x.split(CHUNK)])
    radius = far[:, k]  # the nearest one is the point itself
    margin = redraws.rounding(x, radius)
    outer = (radius.square() + margin).sqrt()
    tied = float((far[:, k + 1] <= outer).double().mean()) if listed > k + 1 else 0.0
    return (radius.square() - margin).clamp(min=0).sqrt(), outer, tied


def equally_many(
    fake: ExtractedFeatures, real: ExtractedFeatures, seed: int
) -> tuple[ExtractedFeatures, ExtractedFeatures]:
    """Return equally many samples and real rows, at most 10,000: balls of a larger set are smaller, which would distort recall."""
    n = min(len(fake), len(real), MOST)
    return some(fake, n, "prdc fake", seed), some(real, n, "prdc real")


def some(features: ExtractedFeatures, n: int, purpose: str, seed: int = 0) -> ExtractedFeatures:
    """Return at most n of the rows, chosen at random but always the same for a purpose and a seed."""
    return features if n >= len(features) else features.rows(np.sort(shuffle(len(features), purpose, seed)[:n]))


def _measured(material: ScoringContext) -> tuple[ExtractedFeatures, PrdcScores]:
    """Return the samples that are compared with the data, and their scores.

    All four metrics use them, so they are computed once and stored in the context.

    Raises:
        MetricSkipped: There are too few samples or too little data.
    """
    cache = material.cache
    if "prdc" not in cache:
        fake, real = equally_many(material.features, material.reference.real, material.seed)
        if len(fake) <= NEIGHBOURS:
            raise MetricSkipped(f"it needs more than {NEIGHBOURS} samples and data: ask for more")
        cache["prdc"] = (fake, prdc(real.x, fake.x, progress=material.progress))
    result: tuple[ExtractedFeatures, PrdcScores] = cache["prdc"]
    return result


def _in_groups(material: ScoringContext) -> dict[str, ScoreEntry]:
    """Return the entries of every group for each of the four scores; they are computed once and stored in the context."""
    cache = material.cache
    if "prdc groups" not in cache:
        pairs = {g.name: equally_many(g.fake, g.real, material.seed) for g in wanted_groups(material)}
        groups = [FeatureGroup(name, fake, real) for name, (fake, real) in pairs.items() if len(fake) > NEIGHBOURS]
        scores = [prdc(g.real.x, g.fake.x) for g in timed(groups, material.progress, "neighbourhoods of groups")]
        means = {name: [one.value(name) for one in scores] for name in NAMES}
        cache["prdc groups"] = {name: entries(str(material.per), groups, means[name]) for name in NAMES}
    out: dict[str, ScoreEntry] = cache["prdc groups"]
    return out


def interval_of(name: str, scores: PrdcScores, seed: int) -> ScoreInterval | None:
    """Return the 95 % interval of a score over redrawn samples; None for a density that is equal for all samples."""
    value, n = scores.value(name), len(scores.each["precision"])
    if name == "precision":  # samples are independent of each other
        return intervals.share(value, n)
    if name == "density":  # may exceed 1
        return intervals.mean(scores.each[name])
    how = f"{redraws.SUBSETS} subsets of the samples"
    return intervals.share_with_error(value, scores.counts[name].error(seed), n / NEIGHBOURS, n, how)


def _measure(name: str) -> Callable[[ScoringContext], ScoreEntry]:
    """Return the function that measures one of the four scores."""

    def measure(material: ScoringContext) -> ScoreEntry:
        fake, scores = _measured(material)
        out: ScoreEntry = {
            "value": scores.value(name),
            **material.reference.described(fake),
            "real_samples": len(fake),
            "neighbours": NEIGHBOURS,
        }
        if interval := interval_of(name, scores, material.seed):
            out["interval"] = interval
        if material.per:
            out |= _in_groups(material)[name]
        warnings = []
        if name == "density" and scores.tied > TIED:
            warnings.append(
                f"{100 * scores.tied:.0f} % of the data has several neighbours at exactly the same distance, which density "
                "leaves out: read precision and coverage instead"
            )
        if len(fake) < FEW:
            warnings.append(f"{few_of(len(fake), 'points')} for neighbourhoods: compare it only at the same number")
        if warnings:
            out["warning"] = "; ".join(warnings)
        return out

    return measure


measure_precision, measure_recall, measure_density, measure_coverage = (_measure(name) for name in NAMES)
