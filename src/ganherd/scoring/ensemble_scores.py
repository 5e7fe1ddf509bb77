"""Score mixtures of some generators on samples whose features are computed once, and compare two of these mixtures."""

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
from ganherd.metrics.metric_registry import metric_of
from ganherd.metrics.statistics import intervals
from ganherd.metrics.statistics.verdict import Verdict, verdict
from ganherd.runs.score_entry import ScoreInterval
from ganherd.strategies.mixing import objectives
from ganherd.strategies.mixing.objectives import SampledGenerator
from ganherd.strategies.mixing.scorers import MixtureScorer, class_shares, scored_on, summarise

if TYPE_CHECKING:
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture

GROUPS = 10  # the samples of every generator are cut into this many groups for the interval of a difference
MINIMUM = 5 * GROUPS  # with fewer samples of every generator there is no interval


@dataclass(frozen=True)
class GeneratorSamples:
    """Equally many samples of some generators, with their features and logits."""

    each: Sequence[DrawnSamples]
    features: Sequence[Tensor]  # [n, d] of each generator
    logits: Sequence[Tensor | None]

    def without(self, group: int) -> GeneratorSamples:
        """Return the samples without every GROUPS-th one, counted from `group`."""
        keep = np.arange(len(self.each[0].x)) % GROUPS != group
        rows = torch.from_numpy(np.flatnonzero(keep))
        return GeneratorSamples(
            [DrawnSamples(one.x[keep], one.y[keep], one.member[keep]) for one in self.each],
            [x[rows.to(x.device)] for x in self.features],
            [None if x is None else x[rows.to(x.device)] for x in self.logits],
        )


@dataclass(frozen=True)
class ScoreChange:
    """One score of the run's own mixture and of an ensemble, on the same samples."""

    before: float
    after: float
    interval: ScoreInterval | None  # of `after` minus `before`; None: too few samples, or no difference
    verdict: Verdict  # whether `after` is better, by the interval of how much nearer it is to the metric's goal


def look_at(
    mixture: Mixture, reference: RealFeatures, each: Sequence[DrawnSamples], by: str, trust_code: bool
) -> GeneratorSamples:
    """Return features and logits of the samples of each generator.

    Raises:
        UserError: The score `by` cannot be computed for them.
    """
    n, together = len(each[0].x), np.concatenate([one.x for one in each])
    no_member = np.full(len(together), -1, np.int64)
    fake, real = reference.of(DrawnSamples(together, no_member, no_member)), reference.real
    known = 0 if real.logits is None else real.logits.shape[1], reference.network.name
    objectives.refuse(f"--by {by}", by, reference.dataset, n, mixture.takes_label, trust_code, *known)
    logits: Sequence[Tensor | None] = [None] * len(each) if fake.logits is None else fake.logits.split(n)
    return GeneratorSamples(each, fake.x.split(n), logits)


def scores_of(
    mixture: Mixture, reference: RealFeatures, look: GeneratorSamples, by: str, trust_code: bool
) -> dict[str, MixtureScorer]:
    """Return scores of mixtures of these generators: `fid`, `tvd` if the network predicts classes, and the score of the search."""
    real, where = reference.real, _where(look.features[0].shape[1])
    shares = classes = None
    if real.logits is not None:
        predicted = [x.argmax(1).cpu() for x in (real.logits, *look.logits) if x is not None]
        shares, *each = class_shares(predicted, real.logits.shape[1])
        classes = torch.stack(each)
    objective, measured = objectives.find(by, reference, len(look.each[0].x), _where, trust_code), {}
    if objective:
        labels = [torch.from_numpy(one.y).to(look.features[0].device) for one in look.each]
        seen = zip(look.each, look.features, look.logits, labels, strict=True)
        measured = objective.measure_all(
            SampledGenerator(torch.from_numpy(one.x), x, logits, y if mixture.takes_label else None)
            for one, x, logits, y in seen
        )
    summary = summarise([x.to(where) for x in look.features], classes, measured)
    moments = Moments(real.moments.mean.to(where), real.moments.cov.to(where))
    return objectives.scorers(summary, moments, shares, by, objective)


def changes_of(
    mixture: Mixture,
    reference: RealFeatures,
    look: GeneratorSamples,
    whole: dict[str, MixtureScorer],
    by: str,
    trust_code: bool,
    both: tuple[Tensor, Tensor],
) -> dict[str, ScoreChange]:
    """Compare two mixtures by each score, over the samples.

    Intervals are those of a jackknife: differences are measured without each of some groups of samples.

    Args:
        mixture: The mixture that the generators are from.
        reference: Features of the data.
        look: Samples of each generator.
        whole: The scores on all samples of `look`.
        by: The score of the search.
        trust_code: Whether a user's function may be loaded.
        both: The weights of the two mixtures.
    """
    groups = range(GROUPS if len(look.each[0].x) >= MINIMUM else 0)
    without = [scores_of(mixture, reference, look.without(group), by, trust_code) for group in groups]
    changes = {}
    for name, score in whole.items():
        before, after = (value_of(score, weights) for weights in both)
        each = [(value_of(one[name], both[0]), value_of(one[name], both[1])) for one in without]
        changes[name] = change_of(name, before, after, each)
    return changes


def change_of(name: str, before: float, after: float, without: Sequence[tuple[float, float]]) -> ScoreChange:
    """Return the change of a score between two mixtures.

    Args:
        name: The score.
        before: Its value for the first mixture, on all samples.
        after: Its value for the second.
        without: Both values without each of some groups of samples; empty: there is no interval.
    """
    merit = metric_of(name).merit
    if not without:
        return ScoreChange(before, after, None, "undecided")
    interval = intervals.jackknife(after - before, [b - a for a, b in without])
    gain = intervals.jackknife(merit(after) - merit(before), [merit(b) - merit(a) for a, b in without])
    return ScoreChange(before, after, interval, verdict(gain))


def _where(features: int) -> torch.device:
    """Return the device to score mixtures on with this many features."""
    return scored_on(features, best_device())


def value_of(score: MixtureScorer, weights: Tensor) -> float:
    """Return the score of one mixture; NaN if it is not finite."""
    value = float(score(weights[None], torch.arange(len(weights))[None])[0])
    return value if math.isfinite(value) else math.nan
