"""Compute how much better or worse than the first contender the others are, with interval, p-value and verdict.

One score is declared primary before anything trains: FID, or the first requested score. It is tested by itself, with Holm's
correction over the pairs of contenders if there are more than two. All other scores are one family with Holm's correction over
scores and pairs: the chance that any of their verdicts is wrong stays below 5 %, however many scores there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Any, cast

from ganherd.compare.comparison_record import ScoreDifference
from ganherd.metrics.metric_registry import METRICS
from ganherd.metrics.statistics.intervals import interval
from ganherd.metrics.statistics.seeds import SURE, together
from ganherd.metrics.statistics.significance import UNDECIDED, Ends, Outcome, sign
from ganherd.metrics.statistics.significance import difference as independent_difference
from ganherd.scoring.result import SKIPPED

Scores = Mapping[str, Mapping[str, Any]]
PRIMARY = "fid"
ALPHA = 0.05  # the chance of a wrong verdict in each family
_Z = NormalDist().inv_cdf(1 - ALPHA / 2)  # standard errors that an interval reaches to each side
_ABOVE_ALPHA = math.nextafter(ALPHA, 1.0)


def primary_of(metrics: Sequence[str]) -> str:
    """Return the primary score: FID, or the first requested one if FID is not among them.

    >>> primary_of(["kid", "fid"]), primary_of(["modes", "kid"])
    ('fid', 'modes')
    """
    return PRIMARY if PRIMARY in metrics else metrics[0]


class Differences:
    """The differences between all pairs of contenders, with corrected verdicts."""

    def __init__(self, scores: Mapping[str, Scores], primary: str = PRIMARY, over_samples: bool = False) -> None:
        """Compare all pairs.

        Args:
            scores: The scores of each contender.
            primary: The score that was declared primary.
            over_samples: Compare contenders of one seed by the intervals over their samples. Such a verdict is about these
                trained mixtures only, not about their recipes.
        """
        self._names = list(scores)
        known = {name: _measured(own) for name, own in scores.items()}
        self._pairs: dict[tuple[str, str, str], ScoreDifference] = {
            (a, b, metric): difference(metric, known[a][metric], entry, over_samples)
            for a, b in combinations(known, 2)
            for metric, entry in known[b].items()
            if metric in known[a]
        }
        for is_primary in (True, False):
            family = [one for (_, _, metric), one in self._pairs.items() if (metric == primary) is is_primary]
            _correct(family)

    def to_first(self) -> dict[str, dict[str, ScoreDifference]]:
        """Return the differences of every other contender from the first one, by contender and metric.

        >>> a, b = ({"fid": {"value": v, "per_seed": [v, v + 0.02 * v], "seeds": [0, 1]}} for v in (5.0, 3.0))
        >>> found = Differences({"a": a, "b": b}).to_first()["b"]["fid"]
        >>> round(found["value"], 3), found["verdict"]
        (-2.02, 'better')
        """
        first, *others = self._names
        result: dict[str, dict[str, ScoreDifference]] = {name: {} for name in others}
        for (a, b, metric), one in self._pairs.items():
            if a == first:
                result[b][metric] = one
        return result

    def decided(self) -> dict[str, list[tuple[str, str]]]:
        """Return by metric the pairs (better, worse) of contenders that differ for certain, among all pairs.

        >>> a, b, c = ({"fid": {"value": v, "per_seed": [v, v + 0.02 * v]}} for v in (5.0, 3.0, 3.0))
        >>> Differences({"a": a, "b": b, "c": c}).decided()
        {'fid': [('b', 'a'), ('c', 'a')]}
        """
        result: dict[str, list[tuple[str, str]]] = {}
        for (a, b, metric), one in self._pairs.items():
            if one["verdict"] != UNDECIDED:
                result.setdefault(metric, []).append((b, a) if one["verdict"] == "better" else (a, b))
        return result

    def best(self) -> dict[str, str]:
        """Return by metric the contender that is certainly better than every other, with an interval that excludes 0.

        Metrics without such a contender are left out, e.g. `kid` below, which one seed cannot decide.

        >>> a, b = ({"fid": {"value": v, "per_seed": [v, v + 0.02 * v]}, "kid": {"value": v, "per_seed": [v]}} for v in (5.0, 3.0))
        >>> Differences({"a": a, "b": b}).best()
        {'fid': 'b'}
        """
        wins: dict[str, dict[str, set[str]]] = {}  # by metric and contender, those that it is better than
        for metric, pairs in self.decided().items():
            for winner, loser in pairs:
                wins.setdefault(metric, {}).setdefault(winner, set()).add(loser)
        compared: dict[str, set[str]] = {}
        for a, b, metric in self._pairs:
            compared.setdefault(metric, set()).update((a, b))
        return {
            metric: name
            for metric, names in compared.items()
            for name in sorted(names)
            if wins.get(metric, {}).get(name) == names - {name}
        }


def difference(
    metric: str, first: Mapping[str, Any], other: Mapping[str, Any], over_samples: bool = False
) -> ScoreDifference:
    """Return the difference of a score (other minus first) with interval, p-value and verdict, not corrected for other tests.

    The verdict is about the gain; for a score of which 1 is best, the gain is how much nearer to 1 it is. Seeds that both have
    are paired; if they have fewer than two in common, Welch's test compares the means. See `Differences` for `over_samples`.
    """
    merit, mine, theirs = METRICS[metric].merit, _by_seed(first), _by_seed(other)
    plain: ScoreDifference = {"value": other["value"] - first["value"], "per_seed": [], "verdict": UNDECIDED}
    common = [seed for seed in mine if seed in theirs]
    if len(common) > 1:
        paired = together([{"value": theirs[seed] - mine[seed]} for seed in common], common)
        gains = [merit(theirs[seed]) - merit(mine[seed]) for seed in common]
        return _with_verdict({**plain, **cast(ScoreDifference, paired)}, sum(gains), paired_p(gains))
    if len(mine) > 1 and len(theirs) > 1:
        (a, b), how = ([*mine.values()], [*theirs.values()]), "Welch's t over different seeds"
        if all(max(values) - min(values) <= 1e-9 * abs(values[0]) for values in (a, b)):
            return plain  # neither varies, so that there is no spread to compare the difference with
        from scipy.stats import ttest_ind

        ends = ttest_ind(b, a, equal_var=False).confidence_interval()
        merits = [[merit(value) for value in values] for values in (a, b)]
        test = ttest_ind(merits[1], merits[0], equal_var=False)
        plain["interval"] = interval(float(ends.low), float(ends.high), how)
        return _with_verdict(plain, float(test.statistic), float(test.pvalue))
    own, others = _ends(first), _ends(other)
    if over_samples and own is not None and others is not None:
        low, high = independent_difference(other["value"], others, first["value"], own)
        plain["interval"] = interval(low, high, "over the samples of these two")
        gain = merit(other["value"]) - merit(first["value"])
        towards_zero = plain["value"] - low if plain["value"] > 0 else high - plain["value"]
        p = math.erfc(abs(gain) / max(towards_zero, 1e-300) * _Z / math.sqrt(2))
        if not sign((low, high)):
            p = max(p, _ABOVE_ALPHA)  # an interval that ends at 0 holds it, and decides nothing
        return _with_verdict(plain, gain, p)
    return plain


def paired_p(gains: Sequence[float]) -> float | None:
    """Return the p-value of paired gains by Student's t test; None if it cannot be computed.

    Equal gains have no spread, which the t test needs. Six or more of them get the p-value of the sign test, and fewer none.

    >>> round(paired_p([1.0, 2.0, 3.0]), 3), paired_p([1.0] * 6), paired_p([1.0, 1.0]) is None
    (0.074, 0.03125, True)
    """
    count, mean = len(gains), sum(gains) / len(gains)
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (count - 1))
    if deviation <= 1e-9 * abs(mean) or deviation == 0:
        return 2.0 ** (1 - count) if count >= SURE and mean else None
    from scipy.special import stdtr  # what scipy.stats.t.sf calls; scipy.stats takes a second to import

    return float(2 * stdtr(count - 1, -abs(mean) / deviation * math.sqrt(count)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method for the number of tests.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    out, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        out[i] = highest
    return out


def _with_verdict(difference: ScoreDifference, gain: float, p: float | None) -> ScoreDifference:
    """Add the p-value, and the verdict that it gives for a gain of this sign."""
    if p is None or not math.isfinite(p):
        return {**difference, "verdict": UNDECIDED}
    direction: Outcome = "better" if gain > 0 else "worse"
    return {**difference, "p": p, "direction": direction, "verdict": direction if p <= ALPHA else UNDECIDED}


def _correct(family: Sequence[ScoreDifference]) -> None:
    """Add Holm's corrected p-values to the differences that are tested together, and replace their verdicts accordingly."""
    tested = [one for one in family if "p" in one]
    for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
        one["p_corrected"] = p
        one["verdict"] = one["direction"] if p <= ALPHA else UNDECIDED


def _by_seed(entry: Mapping[str, Any]) -> dict[int, float]:
    """Return the known values of a score by seed; empty for a score that was measured on one seed."""
    values = entry.get("per_seed", ())
    seeds = entry.get("seeds") or ()
    by_seed = zip(seeds if len(seeds) == len(values) else range(len(values)), values, strict=True)
    return {seed: value for seed, value in by_seed if _is_number(value)}


def _ends(entry: Mapping[str, Any]) -> Ends | None:
    """Return the interval of a score over its samples; None if it has none, or one over seeds."""
    ends = entry.get("interval")
    return (ends["low"], ends["high"]) if isinstance(ends, Mapping) and "per_seed" not in entry else None


def _measured(scores: Scores) -> Scores:
    """Return the scores that have a value."""
    return {m: entry for m, entry in scores.items() if m != SKIPPED and m in METRICS and _is_number(entry.get("value"))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
