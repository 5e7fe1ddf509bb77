"""Class histogram: the distance between the classes that a classifier predicts for samples of the mixture and p(y)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ganherd.features.material import FROM_DATA, DrawnSamples, ScoringContext
from ganherd.metrics.groups import SampleGroup, of_rows, wanted_rows
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval

ROUGH = 0.1  # if perfect draws would have a larger distance than this, there is a warning


def class_histogram(predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return the fractions of the classes, float64 [classes].

    >>> class_histogram(np.array([0, 2, 2, 2]), 3)
    array([0.25, 0.  , 0.75])
    """
    return np.bincount(predicted, minlength=classes) / len(predicted)


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """Return the total variation distance: 0 for equal distributions, 1 for disjoint ones.

    >>> total_variation(np.array([0.5, 0.5]), np.array([0.5, 0.5]))
    0.0
    """
    return float(np.abs(p - q).sum() / 2)


def expected_by_chance(p: np.ndarray, samples: int) -> float:
    """Return approximately the distance that this many perfect draws from p would have."""
    return min(1.0, float(np.sqrt(2 * p * (1 - p) / (np.pi * samples)).sum() / 2))


def chance_interval(p: np.ndarray, samples: int, rows: int | None, seed: int) -> ScoreInterval:
    """Return the interval of the distance that this many perfect draws from p have, from simulated draws.

    Args:
        p: The frequencies of the classes [classes].
        samples: The number of draws.
        rows: The number of real rows that p was estimated from, which adds an error; None: p is exact.
        seed: The seed of the simulated draws.

    >>> ends = chance_interval(np.full(10, 0.1), 1000, None, 0)
    >>> ends["low"] < expected_by_chance(np.full(10, 0.1), 1000) < ends["high"]
    True
    """
    rng = np.random.default_rng([seed, samples, 0x7D])
    seen = rng.multinomial(samples, p, size=intervals.COUNTED) / samples  # [draws, classes]
    wanted = p if rows is None else rng.multinomial(rows, p, size=intervals.COUNTED) / rows
    low, high = np.quantile(np.abs(seen - wanted).sum(1) / 2, [0.025, 0.975])
    return intervals.interval(low, high, f"{intervals.COUNTED:,} simulated draws")


def measure(material: ScoringContext) -> ScoreEntry:
    """Measure the distance between the classes that are predicted for samples of the mixture and p(y)."""
    labels, judge = material.dataset.labels, _judge(material)
    samples = material.drawn
    seen = class_histogram(judge.predict(samples), len(labels))
    wanted, reference = material.class_weights
    rows = int((material.dataset.y >= 0).sum()) if reference == FROM_DATA else None
    value, by_chance = total_variation(seen, wanted), expected_by_chance(wanted, len(samples.x))
    out: ScoreEntry = {
        "value": value,
        "interval": intervals.variation(value, seen, len(samples.x), material.seed),
        "by_chance": by_chance,
        "real_interval": chance_interval(wanted, len(samples.x), rows, material.seed),
        "per_class": dict(zip(labels, seen.tolist(), strict=True)),
        "expected": dict(zip(labels, wanted.tolist(), strict=True)),
        "reference": reference,
        **judge.described(len(samples.x)),
    }
    if by_chance > ROUGH:
        out["warning"] = f"perfect draws of {len(samples.x):,} samples would show {by_chance:.2f}: ask for more"
    return out | _in_groups(material, wanted, judge)


@dataclass(frozen=True)
class ClassJudge:
    """What predicts the classes of samples."""

    predict: Callable[[DrawnSamples], np.ndarray]
    described: Callable[[int], ScoreEntry]  # returns the fields of scores.json about it, for this many samples


def _judge(material: ScoringContext) -> ClassJudge:
    """Return what predicts classes: the network that --network names if its outputs are the classes of this data.

    Otherwise it is the classifier of the data.
    """
    requested = material.against
    if requested is not None and requested.wanted not in (None, "classifier") and not requested.network.as_inception:
        seen = material.features.logits
        if seen is not None and seen.shape[1] == len(material.dataset.labels):

            def predict(drawn: DrawnSamples) -> np.ndarray:
                logits = (material.features if drawn is material.drawn else requested.of(drawn)).logits
                assert logits is not None
                return np.asarray(logits.argmax(1).cpu())

            return ClassJudge(predict, requested.network.described)
    own = material.classifier
    return ClassJudge(lambda drawn: own.predict(drawn.x), own.described)


def _in_groups(material: ScoringContext, wanted: np.ndarray, judge: ClassJudge) -> ScoreEntry:
    """Return the distance of every member or neighbourhood from p(y), restricted to the classes that it represents."""
    if material.per in (None, "class"):
        return {}
    drawn, rows = wanted_rows(material)
    predicted = judge.predict(drawn)

    def distance(one: SampleGroup) -> float:
        is_own = np.isin(np.arange(len(wanted)), one.classes) if one.classes else np.ones(len(wanted), bool)
        own = np.where(is_own, wanted, 0.0)
        own = own / own.sum() if own.sum() > 0 else is_own / len(one.classes)
        return total_variation(class_histogram(predicted[one.index], len(wanted)), own)

    return of_rows(material, rows, distance)
