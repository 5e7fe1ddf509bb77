"""Scores of a mixture against the data: every number with its sample count, its network and its seed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ganherd.errors import UserError
from ganherd.scores import diversity, histogram, label_accuracy
from ganherd.scores.material import Material, Progress
from ganherd.scores.of_run import score_run
from ganherd.scores.table import table

if TYPE_CHECKING:
    from ganherd.data.source import Dataset
    from ganherd.mixture import Mixture

__all__ = ["METRICS", "Metric", "known_metrics", "score", "score_run", "table"]


@dataclass(frozen=True)
class Metric:
    """A metric by what measures it, one line about it, and what it cannot do without."""

    measure: Callable[[Material], dict[str, Any]]
    about: str
    best: float  # the value of a perfect mixture
    needs_classes: bool = False  # data with labels of at least two classes
    needs_asking: bool = False  # members that stand for classes


METRICS: dict[str, Metric] = {
    "label_accuracy": Metric(
        label_accuracy.measure,
        "samples that a classifier of the real data sees as the label that was asked for",
        best=1.0,
        needs_classes=True,
        needs_asking=True,
    ),
    "histogram": Metric(
        histogram.measure,
        "total variation distance between the classes seen in free samples and p(y)",
        best=0.0,
        needs_classes=True,
    ),
    "diversity": Metric(
        diversity.measure,
        "spread of the generated pixels by the data's, in the class where it is least",
        best=1.0,
    ),
}


def score(
    mixture: Mixture,
    dataset: Dataset,
    metrics: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    replica: int = 0,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Every metric by name: {"value", "samples", "network", "seed", "replica", …}; `skipped`: what was not, and why."""
    names = known_metrics(metrics)
    material = Material(mixture, dataset, samples, seed, replica, progress)
    out: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        metric = METRICS[name]
        if reason := _missing(metric, material):
            skipped[name] = reason
            continue
        material.tell(name.replace("_", " "))
        found = metric.measure(material)
        first = {key: found.pop(key) for key in ("value", "samples", "network")}
        out[name] = {**first, "seed": seed, "replica": replica, **found}
    if skipped:
        out["skipped"] = skipped
    return out


def known_metrics(names: Sequence[str] | None) -> list[str]:
    """Names of metrics as the registry has them, each once; None means all."""
    return list(METRICS) if names is None else list(dict.fromkeys(_known(name) for name in names))


def _known(name: str) -> str:
    key = name.strip().replace("-", "_")
    if key in METRICS:
        return key
    close = difflib.get_close_matches(key, METRICS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise UserError(f"there is no metric named {name!r}{hint}: use some of {', '.join(METRICS)}")


def _missing(metric: Metric, material: Material) -> str:
    """Why this metric cannot be measured here; empty where it can."""
    if metric.needs_classes and len(material.dataset.labels) < 2:
        known = len(material.dataset.labels)
        return "the data has only one class" if known == 1 else "the data has no labels"
    if metric.needs_asking and not material.has_labels:
        return "the members stand for no class, so no label can be asked for"
    return ""
