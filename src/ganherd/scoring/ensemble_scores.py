"""Score mixtures of some generators on samples whose features are computed once, and compare two of these mixtures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.features.extract import Moments, best_device
from ganherd.features.material import DrawnSamples
from ganherd.metrics.metric_registry import metric_of
from ganherd.metrics.statistics import intervals
from ganherd.metrics.statistics.significance import Outcome, outcome
from ganherd.runs.score_entry import ScoreInterval
from ganherd.strategies.mixing import objectives
from ganherd.strategies.mixing.objectives import SampledGenerator
from ganherd.strategies.mixing.scorers import MixtureScorer, class_shares, scored_on, summarise
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress, timed

if TYPE_CHECKING:
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture

GROUPS = 10  # the samples of every generator are cut into this many groups for the interval of a difference
_COUNTS = ("modes", "stacked_modes")
MINIMUM = 5 * GROUPS  # with fewer samples of every generator there is no interval


@dataclass(frozen=True)
class ScoreChange:
    """One score of the run's own mixture and of an ensemble, on the same samples."""

    before: float
    after: float
    interval: ScoreInterval | None  # of `after` minus `before`; None: too few samples, or no difference
    verdict: Outcome  # whether `after` is better, by the interval of how much nearer it is to the metric's goal


@dataclass(frozen=True)
class EnsembleScorer:
    """Score mixtures of the generators of a run: by FID, by TVD if the network predicts classes, and by one more score."""

    mixture: Mixture
    reference: RealFeatures
    by: str  # the score of the search
    trust_code: bool
    option: str = ""  # what messages call the score; empty: `--by` with its name

    def extract(self, drawn: Sequence[DrawnSamples]) -> list[SampledGenerator]:
        """Return the samples of each generator, equally many, with their features and logits.

        Raises:
            UserError: The score `by` cannot be computed for them.
        """
        n, x = len(drawn[0].x), np.concatenate([one.x for one in drawn])
        no_member = np.full(len(x), -1, np.int64)
        fake, real = self.reference.of(DrawnSamples(x, no_member, no_member)), self.reference.real
        known = 0 if real.logits is None else real.logits.shape[1], self.reference.network.name
        takes_label, data = self.mixture.takes_label, self.reference.dataset
        option = self.option or f"--by {self.by}"
        objectives.refuse(option, self.by, data, n, takes_label, self.trust_code, *known)
        logits: Sequence[Tensor | None] = [None] * len(drawn) if fake.logits is None else fake.logits.split(n)
        labels = [torch.from_numpy(one.y).to(fake.x.device) if takes_label else None for one in drawn]
        return [
            SampledGenerator(torch.from_numpy(one.x), *seen)
            for one, *seen in zip(drawn, fake.x.split(n), logits, labels, strict=True)
        ]

    def scorers(self, each: Sequence[SampledGenerator]) -> dict[str, MixtureScorer]:
        """Return the scores of mixtures of these generators, on these samples."""
        real = self.reference.real
        where, shares, classes = _where(real.dimension), None, None
        if real.logits is not None:
            logits = [real.logits, *(one.logits for one in each if one.logits is not None)]
            shares, *of_each = class_shares([x.argmax(1).cpu() for x in logits], real.logits.shape[1])
            classes = torch.stack(of_each)
        objective = objectives.find(self.by, self.reference, len(each[0].x), _where, self.trust_code)
        measured = objective.measure_all(each) if objective else None
        summary = summarise([one.features.to(where) for one in each], classes, measured)
        moments = Moments(real.moments.mean.to(where), real.moments.cov.to(where))
        return objectives.scorers(summary, moments, shares, self.by, objective)

    def changes(
        self, each: Sequence[SampledGenerator], whole: dict[str, MixtureScorer], both: tuple[Tensor, Tensor]
    ) -> dict[str, ScoreChange]:
        """Compare two mixtures by each score.

        Intervals are those of a jackknife: differences are measured without each of some groups of samples.

        Args:
            each: Samples of each generator.
            whole: The scores on all these samples.
            both: The weights of the two mixtures.
        """
        n = len(each[0].x)
        groups = range(GROUPS if n >= MINIMUM else 0)
        rows = [torch.from_numpy(np.flatnonzero(np.arange(n) % GROUPS != group)) for group in groups]
        without = [self.scorers([one.rows(some) for one in each]) for some in rows]
        changes = {}
        for name, score in whole.items():
            before, after = (value_of(score, weights) for weights in both)
            parts = [(value_of(one[name], both[0]), value_of(one[name], both[1])) for one in without]
            changes[name] = change_of(name, before, after, parts)
        return changes


def change_of(name: str, before: float, after: float, without: Sequence[tuple[float, float]]) -> ScoreChange:
    """Return the change of a score between two mixtures.

    Args:
        name: The score.
        before: Its value for the first mixture, on all samples.
        after: Its value for the second.
        without: Both values without each of some groups of samples; empty: there is no interval. A count has none either: a
            jackknife needs values that change smoothly.
    """
    merit = metric_of(name).merit
    if not without or name in _COUNTS:
        return ScoreChange(before, after, None, "undecided")
    interval = intervals.jackknife(after - before, [b - a for a, b in without])
    gain = intervals.jackknife(merit(after) - merit(before), [merit(b) - merit(a) for a, b in without])
    return ScoreChange(before, after, interval, outcome(gain))


def _where(features: int) -> torch.device:
    """Return the device on which mixtures are scored fastest, given the number of features."""
    return scored_on(features, best_device())


def draw_each(
    mixture: Mixture, replica: int, members: Sequence[int], samples: int, seed: int, progress: Progress | None = None
) -> dict[int, DrawnSamples]:
    """Return samples of each of these members alone, for members whose samples are finite."""
    samples_of: dict[int, DrawnSamples] = {}
    for member in timed(members, progress, "drawing samples of every generator"):
        try:
            drawn = mixture.alone(member).sample(samples, seed=seed, replica=replica)
        except UserError:  # not finite
            continue
        if np.isfinite(drawn.x).all():
            samples_of[member] = drawn
    return samples_of


def value_of(score: MixtureScorer, weights: Tensor) -> float:
    """Return the score of the mixture with these weights [generators]; NaN if it is not finite."""
    value = float(score(weights[None], torch.arange(len(weights))[None])[0])
    return value if math.isfinite(value) else math.nan
