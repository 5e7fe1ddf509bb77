"""Scores of mixtures of some generators, on samples that a network looked at once, and how sure their difference is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.features.extract import best_device
from ganherd.features.material import DrawnSamples
from ganherd.features.moments import Moments
from ganherd.metrics.statistics import intervals
from ganherd.recipe.mixture_scores import more_is_better
from ganherd.runs.score_entry import ScoreInterval
from ganherd.strategies.mixing import objectives
from ganherd.strategies.mixing.mixing import FrechetScore, MixtureScorer, VariationScore, scored_on, summarise
from ganherd.strategies.mixing.objectives import SampledGenerator
from ganherd.strategies.mixing.reweighted import Oriented

if TYPE_CHECKING:
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture

GROUPS = 10  # the samples of every generator are cut into this many groups for the interval of a difference
MINIMUM = 5 * GROUPS  # with fewer samples of every generator there is no interval


@dataclass(frozen=True)
class GeneratorSamples:
    """Samples of some generators, as many of each, and what a network sees in them."""

    each: Sequence[DrawnSamples]
    features: Sequence[Tensor]  # [n, d] of each generator
    logits: Sequence[Tensor | None]

    def without(self, group: int) -> GeneratorSamples:
        """Return the same without every GROUPS-th sample, counted from `group`."""
        keep = np.arange(len(self.each[0].x)) % GROUPS != group
        rows = torch.from_numpy(np.flatnonzero(keep))
        return GeneratorSamples(
            [DrawnSamples(one.x[keep], one.y[keep], one.member[keep]) for one in self.each],
            [x[rows.to(x.device)] for x in self.features],
            [None if x is None else x[rows.to(x.device)] for x in self.logits],
        )


def look_at(
    mixture: Mixture, reference: RealFeatures, each: Sequence[DrawnSamples], by: str, trust_code: bool
) -> GeneratorSamples:
    n, together = len(each[0].x), np.concatenate([one.x for one in each])
    no_member = np.full(len(together), -1, np.int64)
    fake, real = reference.of(DrawnSamples(together, no_member, no_member)), reference.real
    classes = 0 if real.logits is None else real.logits.shape[1]
    if by in objectives.CLASSES and not classes:
        raise objectives.no_classes(f"--by {by}", reference.network.name)
    objectives.refuse(f"--by {by}", by, reference.dataset, n, mixture.takes_label, trust_code, classes)
    logits: Sequence[Tensor | None] = [None] * len(each) if fake.logits is None else fake.logits.split(n)
    return GeneratorSamples(each, fake.x.split(n), logits)


def scores_of(
    mixture: Mixture, reference: RealFeatures, look: GeneratorSamples, by: str, trust_code: bool
) -> dict[str, MixtureScorer]:
    """How mixtures of these generators are scored, less being better: fid, tvd where the network tells classes, and what is
    searched by."""
    real, where = reference.real, _where(look.features[0].shape[1])
    classes = 0 if real.logits is None else real.logits.shape[1]
    predicted = [x.argmax(1).cpu() for x in look.logits if x is not None] or None
    summary = summarise([x.to(where) for x in look.features], predicted, classes)
    scorers: dict[str, MixtureScorer] = {
        "fid": FrechetScore(summary, Moments(real.moments.mean.to(where), real.moments.cov.to(where)))
    }
    if real.logits is not None:
        seen = torch.bincount(real.logits.argmax(1).cpu(), minlength=classes).double()
        scorers["tvd"] = VariationScore(summary, seen / seen.sum())
    if aim := objectives.find(by, reference, len(look.each[0].x), _where, trust_code):
        labels = [
            torch.from_numpy(one.y).to(look.features[0].device) if mixture.takes_label else None for one in look.each
        ]
        seen_by = zip(look.each, look.features, look.logits, labels, strict=True)
        parts = [aim.measure(SampledGenerator(torch.from_numpy(one.x), x, logits, y)) for one, x, logits, y in seen_by]
        stacked = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        scorers[by] = Oriented(aim.score(stacked), torch.zeros(len(look.each), dtype=torch.bool), more_is_better(by))
    return scorers


def intervals_of(
    mixture: Mixture,
    reference: RealFeatures,
    look: GeneratorSamples,
    whole: dict[str, MixtureScorer],
    by: str,
    trust_code: bool,
    both: tuple[Tensor, Tensor],
) -> dict[str, ScoreInterval | None]:
    """Return for each score the interval of how much the second mixture has more than the first, over the samples.

    It is a jackknife: the difference is measured without each of some groups of samples.

    Args:
        whole: the scores on all samples of `look`.
    """
    if len(look.each[0].x) < MINIMUM:
        return dict.fromkeys(whole)
    without = [scores_of(mixture, reference, look.without(group), by, trust_code) for group in range(GROUPS)]
    out: dict[str, ScoreInterval | None] = {}
    for name, score in whole.items():
        value = value_of(name, score, both[1]) - value_of(name, score, both[0])
        each = [value_of(name, one[name], both[1]) - value_of(name, one[name], both[0]) for one in without]
        out[name] = intervals.jackknife(value, each)
    return out


def _where(features: int) -> torch.device:
    return scored_on(features, best_device())


def value_of(name: str, score: MixtureScorer, weights: Tensor) -> float:
    """The score itself."""
    value = float(score(weights[None], torch.arange(len(weights))[None])[0])
    return math.nan if not math.isfinite(value) else -value if more_is_better(name) else value
