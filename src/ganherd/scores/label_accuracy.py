"""Label accuracy: how often the classifier of the real data sees in a generated sample the label that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ganherd.scores.material import Material

TRUSTED = 0.95  # a classifier that is right less often than this on real data gets a warning


def label_accuracy(predicted: np.ndarray, asked: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """The fraction of samples seen as what was asked for, in all and for every class that was asked for.

    >>> label_accuracy(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), ["cat", "dog"])
    {'value': 0.75, 'per_class': {'cat': 0.5, 'dog': 1.0}}
    """
    right = predicted == asked
    per_class = {name: float(right[asked == k].mean()) for k, name in enumerate(labels) if (asked == k).any()}
    return {"value": float(right.mean()), "per_class": per_class}


def measure(material: Material) -> dict[str, Any]:
    samples, judge = material.asked, material.classifier
    out = {
        **label_accuracy(judge.predict(samples.x), samples.y, material.dataset.labels),
        "samples": len(samples.x),
        "network": judge.name,
        "held_out_accuracy": judge.held_out_accuracy,
        "held_out_samples": judge.held_out_samples,
    }
    if judge.held_out_accuracy is None:
        out["warning"] = "the data has no held-out split, so nobody knows how good the classifier is"
    elif judge.held_out_accuracy < TRUSTED:
        out["warning"] = (
            f"the classifier itself is right on only {judge.held_out_accuracy:.1%} of held-out real samples: "
            "read the score beside that"
        )
    return out
