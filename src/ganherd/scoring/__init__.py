"""Scores of a mixture against the data: every number with its sample count, its network and its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ganherd.features.material import Annealing, MetricSkipped, ScoredNeighbourhood, ScoringContext
from ganherd.metrics.groups import of_grid, refuse_impossible
from ganherd.metrics.metric_registry import METRICS, Metric, known_metrics
from ganherd.metrics.statistics.seeds import together
from ganherd.scoring.one_run import score_run
from ganherd.scoring.score_table import side_by_side, table
from ganherd.scoring.several_runs import ScoredRun, score_runs
from ganherd.scoring.two_sets import score_sets
from ganherd.util.meter import Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture

__all__ = [
    "METRICS",
    "Annealing",
    "Metric",
    "ScoredNeighbourhood",
    "ScoredRun",
    "known_metrics",
    "score",
    "score_run",
    "score_runs",
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
    reference: RealFeatures | None = None,
    per: str | None = None,
    neighbourhoods: Sequence[ScoredNeighbourhood] | None = None,
    annealing: Annealing = Annealing(),
) -> dict[str, dict[str, Any]]:
    """Every metric by name: {"value", "samples", "network", "seed", "replica", …}; `skipped`: what was not, and why.

    Without names: what `ganherd train` measures at its end. `reference` (real features and their network) is by
    default the cheap one: the data's own classifier, or pixels. `per`: "class", "member" or "neighbourhood", values for
    each beside; `neighbourhoods` lists the members of each, where they are not those of the mixture's grid; `annealing`: what
    AIS is made with.
    """
    names = known_metrics(metrics, "train", dataset)
    mixture = _on_best_device(mixture)
    if per == "neighbourhood":
        neighbourhoods = neighbourhoods or of_grid(mixture, replica)
    material = ScoringContext(
        mixture, dataset, samples, seed, replica, progress, reference, per, neighbourhoods, annealing
    )
    refuse_impossible(per, material)
    out: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        if reason := _missing(METRICS[name], material):
            skipped[name] = reason
            continue
        try:
            found = METRICS[name].measure(material)
        except MetricSkipped as why:
            skipped[name] = str(why).rstrip(".")
            continue
        first = {key: found.pop(key) for key in ("value", "samples", "network")}
        # what says nothing of resizing looks at the samples as they are
        out[name] = {**first, "seed": seed, "replica": replica, "resizing": "none", **found}
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
    reference: RealFeatures | None = None,
    per: str | None = None,
    neighbourhoods: Sequence[ScoredNeighbourhood] | None = None,
    annealing: Annealing = Annealing(),
) -> dict[str, dict[str, Any]]:
    """The scores of every replica: with several, the value is their mean, and what each seed has stands beside it."""
    if reference is None:
        from ganherd.features.real_features import RealFeatures

        reference = RealFeatures(dataset, progress=progress)  # one for all replicas
    mixture = _on_best_device(mixture)
    settings: Any = {"reference": reference, "per": per, "neighbourhoods": neighbourhoods, "annealing": annealing}
    each = []
    for r in range(mixture.replicas):
        if progress and mixture.replicas > 1:
            progress(f"seed {r + 1} of {mixture.replicas}")
        each.append(score(mixture, dataset, metrics, samples, seed, r, progress, **settings))
    if len(each) == 1:
        return each[0]
    names = dict.fromkeys(name for one in each for name in one if name != "skipped")
    out = {
        name: together([one[name] for one in each if name in one], mixture.seeds, METRICS[name].bounds)
        for name in names
    }
    skipped = {name: why for one in each for name, why in one.get("skipped", {}).items()}
    return out | ({"skipped": skipped} if skipped else {})


def _on_best_device(mixture: Mixture) -> Mixture:
    """A mixture of generators draws where that is quickest; a set of samples, or a stand-in, where it is."""
    if not hasattr(mixture, "to"):
        return mixture
    from ganherd.features.extract import best_device

    return mixture.to(best_device())


def _missing(metric: Metric, material: ScoringContext) -> str:
    """Why this metric cannot be measured here; empty where it can."""
    if metric.needs_classes and len(material.dataset.labels) < 2:
        known = len(material.dataset.labels)
        return "the data has only one class" if known == 1 else "the data has no labels"
    if metric.needs_asking and not material.has_labels and not material.has_generators:
        return "the samples carry none of the data's labels"
    if metric.needs_asking and not material.has_labels:
        return "the members stand for no class, so no label can be asked for"
    if metric.needs_generators and not material.has_generators:
        return "there are only samples here, and no generators"
    return ""
