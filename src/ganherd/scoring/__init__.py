"""Score a mixture against the data: every number comes with its sample count, its network and its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ganherd.features.material import Annealing, MetricSkipped, ScoredNeighbourhood, ScoringContext
from ganherd.metrics.groups import of_grid, refuse_impossible
from ganherd.metrics.metric_registry import METRICS, Metric, known_metrics
from ganherd.metrics.statistics import intervals
from ganherd.metrics.statistics.seeds import together
from ganherd.recipe.trust import HOW
from ganherd.runs.score_entry import ScoreEntry, Scores
from ganherd.scoring.one_run import score_run
from ganherd.scoring.result import SKIPPED, Score, measured
from ganherd.scoring.score_table import brief, full, side_by_side
from ganherd.scoring.several_runs import ScoredRun, score_runs
from ganherd.scoring.two_sets import score_sets
from ganherd.util.meter import Detail, Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture

__all__ = [
    "METRICS",
    "Annealing",
    "Metric",
    "Score",
    "ScoredNeighbourhood",
    "ScoredRun",
    "brief",
    "contexts",
    "full",
    "known_metrics",
    "score",
    "score_contexts",
    "score_run",
    "score_runs",
    "score_seeds",
    "score_sets",
    "side_by_side",
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
) -> Scores:
    """Return each score by the name of its metric (see `ScoreEntry`), and under `skipped` why metrics were left out.

    Args:
        mixture: The mixture, or a set of samples with its interface.
        dataset: The data to compare it with.
        metrics: Names of metrics; None: those that `ganherd train` measures at its end.
        samples: The number of samples.
        seed: The seed of the samples.
        replica: The replica that is scored.
        progress: Receives lines about the progress.
        reference: Real features and their network; None: the cheap ones, of the data's own classifier or of pixels.
        per: "class", "member" or "neighbourhood": give the values of each, too.
        neighbourhoods: The members of each neighbourhood, if they are not those of the mixture's grid.
        annealing: Settings of AIS.
    """
    names = known_metrics(metrics, "train", dataset)
    mixture = _on_best_device(mixture)
    context = ScoringContext(
        mixture, dataset, samples, seed, replica, progress, reference, per, neighbourhoods, annealing
    )
    return _measured(_prepared(context), names)


def _prepared(context: ScoringContext) -> ScoringContext:
    """Return the context with the neighbourhoods of its replica if --per asks for them.

    Raises:
        UserError: --per asks for groups that do not exist.
    """
    if context.per == "neighbourhood" and not context.neighbourhoods:
        context = replace(context, neighbourhoods=of_grid(context.mixture, context.replica))
    refuse_impossible(context.per, context)
    return context


def _measured(material: ScoringContext, names: Sequence[str]) -> Scores:
    """Return the scores of one replica, and under `skipped` why metrics were left out."""
    out: Scores = {}
    skipped: dict[str, str] = {}
    for name in names:
        if not METRICS.may_load(name):  # the recipe of a run folder names it
            skipped[name] = f"it is code that is not ganherd's: {HOW.rstrip('.')}"
            continue
        if reason := _missing(METRICS[name], material):
            skipped[name] = reason
            continue
        try:
            entry = METRICS[name].measure(material)
        except MetricSkipped as why:
            skipped[name] = str(why).rstrip(".")
            continue
        if (interval := Score(name, entry).interval) is not None:
            entry["interval"] = intervals.cut(interval, METRICS[name].bounds_of(entry))
        first: ScoreEntry = {
            "value": entry.pop("value"),
            "samples": entry.pop("samples"),
            "network": entry.pop("network"),
            "seed": material.seed,
            "replica": material.replica,
            "resizing": "none",  # the metric may replace it
        }
        out[name] = first | entry
    if skipped:
        out[SKIPPED] = skipped
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
    **settings: Any,
) -> Scores:
    """Return the scores of all replicas: with several, each value is their mean, with the values of the seeds.

    The arguments are those of `score`.
    """
    each = contexts(mixture, dataset, samples, seed, progress, reference=reference, **settings)
    return score_contexts(each, known_metrics(metrics, "train", dataset))


def contexts(
    mixture: Mixture,
    dataset: Dataset,
    samples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    reference: RealFeatures | None = None,
    per: str | None = None,
    neighbourhoods: Sequence[ScoredNeighbourhood] | None = None,
    annealing: Annealing = Annealing(),
) -> list[ScoringContext]:
    """Return what scores and verdicts of each replica are computed from. The arguments are those of `score`."""
    from ganherd.features.real_features import RealFeatures

    reference = reference or RealFeatures(dataset, progress=progress)  # one for all replicas
    first = ScoringContext(
        _on_best_device(mixture), dataset, samples, seed, 0, progress, reference, per, neighbourhoods, annealing
    )
    return [_prepared(replace(first, replica=r)) for r in range(mixture.replicas)]


def score_contexts(each: Sequence[ScoringContext], names: Sequence[str]) -> Scores:
    """Return the scores of all replicas, as `score_seeds` does.

    Args:
        each: What the scores of each replica are computed from.
        names: Names of metrics as `known_metrics` returns them.
    """
    scores = []
    for number, context in enumerate(each):
        if context.progress and len(each) > 1:
            context.progress(Detail(f"seed {number + 1} of {len(each)}"))
        scores.append(_measured(context, names))
        context.forget_features()  # verdicts need the samples only, and features of many replicas take much memory
    if len(scores) == 1:
        return scores[0]
    seeds = each[0].mixture.seeds
    known = dict.fromkeys(name for one in scores for name in measured(one))
    out: Scores = {
        name: together([one[name] for one in scores if name in one], seeds, _bounds(name, scores)) for name in known
    }
    skipped = {name: why for one in scores for name, why in one.get(SKIPPED, {}).items()}
    return out | ({SKIPPED: skipped} if skipped else {})


def _bounds(name: str, scores: Sequence[Scores]) -> tuple[float, float]:
    """Return the least and the largest possible value of a metric that replicas were scored with."""
    return METRICS[name].bounds_of(next(one[name] for one in scores if name in one))


def _on_best_device(mixture: Mixture) -> Mixture:
    """Move a mixture of generators to the fastest device; a set of samples stays where it is."""
    if not hasattr(mixture, "to"):
        return mixture
    from ganherd.features.extract import best_device

    return mixture.to(best_device())


def _missing(metric: Metric, material: ScoringContext) -> str:
    """Return why this metric cannot be measured here; empty if it can."""
    if metric.needs_classes and len(material.dataset.labels) < 2:
        known = len(material.dataset.labels)
        return "the data has only one class" if known == 1 else "the data has no labels"
    if metric.needs_asking and not material.has_labels and not material.has_generators:
        return "the samples carry none of the data's labels"
    if metric.needs_asking and not material.has_labels:
        return "every member generates all classes, so no label can be asked for"
    if metric.needs_generators and not material.has_generators:
        return "there are only samples here, and no generators"
    return ""
