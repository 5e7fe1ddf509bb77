"""Scores of a mixture against the data: every number with its sample count, its network and its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.scores.groups import refuse_impossible
from ganherd.scores.material import LeftOut, Material, Progress
from ganherd.scores.of_run import score_run
from ganherd.scores.of_sets import score_sets
from ganherd.scores.registry import METRICS, Metric, known_metrics
from ganherd.scores.table import side_by_side, table

if TYPE_CHECKING:
    from ganherd.data.source import Dataset
    from ganherd.mixture import Mixture
    from ganherd.scores.reference import Reference

__all__ = [
    "METRICS",
    "Metric",
    "known_metrics",
    "score",
    "score_run",
    "score_seeds",
    "score_sets",
    "side_by_side",
    "table",
]


def score(
    mixture: Mixture,
    dataset: Dataset,
    metrics: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    replica: int = 0,
    progress: Progress | None = None,
    *,
    reference: Reference | None = None,
    per: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Every metric by name: {"value", "samples", "network", "seed", "replica", …}; `skipped`: what was not, and why.

    Without names: what `ganherd train` measures at its end. `reference` (real features and their network) is by
    default the cheap one: the data's own classifier, or pixels. `per`: "class" or "member", values for each beside.
    """
    names = known_metrics(metrics)
    material = Material(mixture, dataset, samples, seed, replica, progress, reference, per)
    refuse_impossible(per, material)
    out: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        if reason := _missing(METRICS[name], material):
            skipped[name] = reason
            continue
        material.tell(name.replace("_", " "))
        try:
            found = METRICS[name].measure(material)
        except LeftOut as why:
            skipped[name] = str(why).rstrip(".")
            continue
        first = {key: found.pop(key) for key in ("value", "samples", "network")}
        out[name] = {**first, "seed": seed, "replica": replica, **found}
    if skipped:
        out["skipped"] = skipped
    return out


def score_seeds(
    mixture: Mixture,
    dataset: Dataset,
    metrics: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    reference: Reference | None = None,
    per: str | None = None,
) -> dict[str, dict[str, Any]]:
    """The scores of every replica: with several, the value is their mean, and what each seed has stands beside it."""
    if reference is None:
        from ganherd.scores.reference import Reference

        reference = Reference(dataset, progress=progress)  # one for all replicas
    each = [
        score(mixture, dataset, metrics, samples, seed, r, progress, reference=reference, per=per)
        for r in range(mixture.replicas)
    ]
    if len(each) == 1:
        return each[0]
    out = dict(each[0])
    for name in (name for name in out if name != "skipped"):
        entries = [one[name] for one in each if name in one]
        values = [entry["value"] for entry in entries]
        # an interval is of one replica's samples: beside a mean of replicas stands their own spread
        entry = {key: found for key, found in entries[0].items() if key not in ("replica", "interval")}
        entry |= {key: _mean([one[key] for one in entries]) for key in ("value", "mean") if key in entry}
        for group in ("per_class", "per_member"):
            if group in entry:
                entry[group] = {k: _mean([one[group].get(k) for one in entries]) for k in entry[group]}
        for count in ("samples", "fewest"):
            if count in entry:
                entry[count] = min(one[count] for one in entries)
        known = [value for value in values if value is not None]
        deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
        out[name] = {**entry, "std": deviation, "per_seed": values, "seeds": list(mixture.seeds)}
    return out


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _missing(metric: Metric, material: Material) -> str:
    """Why this metric cannot be measured here; empty where it can."""
    if metric.needs_classes and len(material.dataset.labels) < 2:
        known = len(material.dataset.labels)
        return "the data has only one class" if known == 1 else "the data has no labels"
    if metric.needs_asking and not material.has_labels:
        return "the members stand for no class, so no label can be asked for"
    if metric.needs_generators and not material.has_generators:
        return "there are only samples here, and no generators"
    return ""
