"""Label accuracy: how often a classifier of the real data predicts the label that was requested of a generator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ganherd.features.material import DrawnSamples, MetricSkipped, ScoringContext
from ganherd.metrics.groups import SampleGroup, of_members, of_rows
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import few_of

TRUSTED = 0.95  # with a lower accuracy of the classifier on real data there is a warning
FEW = 100  # with fewer samples there is a warning


def label_accuracy(
    predicted: np.ndarray, requested: np.ndarray, labels: Sequence[str]
) -> tuple[float, dict[str, float]]:
    """Return the share of samples that are classified as the requested label, in all and for every requested class.

    >>> label_accuracy(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), ["cat", "dog"])
    (0.75, {'cat': 0.5, 'dog': 1.0})
    """
    right = predicted == requested
    per_class = {name: float(right[requested == k].mean()) for k, name in enumerate(labels) if (requested == k).any()}
    return float(right.mean()), per_class


def measure(material: ScoringContext) -> ScoreEntry:
    """Measure the accuracy of samples with every label requested equally often."""
    samples, judge = material.by_label, material.classifier
    if not len(samples.x):
        raise MetricSkipped("no sample carries a label")
    value, per_class = label_accuracy(judge.predict(samples.x), samples.y, material.dataset.labels)
    out: ScoreEntry = {
        "value": value,
        "per_class": per_class,
        "interval": intervals.share(value, len(samples.x)),
        **judge.described(len(samples.x)),
    }
    # Every label is requested equally often, so the value of real data is that of equally frequent classes.
    accuracy, out["held_out_samples"] = judge.with_equal_classes
    out["held_out_accuracy"] = accuracy
    if accuracy is None:
        out["warning"] = "the data is too small to hold any out, so the accuracy of the classifier is unknown"
    elif accuracy < TRUSTED:
        out["warning"] = (
            f"the classifier itself is right on only {accuracy:.1%} of held-out real samples: take that into account"
        )
    elif len(samples.x) < FEW:
        out["warning"] = f"{few_of(len(samples.x), 'samples')}: the interval is wide"
    return out | of_members(material, partial(_in_groups, material))


def _in_groups(material: ScoringContext, drawn: DrawnSamples, rows: list[SampleGroup]) -> ScoreEntry:
    """Return the accuracy of every member or neighbourhood that represents classes."""
    right = material.classifier.predict(drawn.x) == drawn.y
    known = (one for one in rows if (drawn.y[one.index] >= 0).all())
    return of_rows(material, known, lambda one: float(right[one.index].mean()))
