"""Inception or classifier score: exp of the mean divergence of p(y | x) from p(y), over splits of the samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ganherd.data.keyed_random import shuffle
from ganherd.features.material import MetricSkipped, ScoringContext
from ganherd.metrics.groups import entries, of_rows, wanted_groups, wanted_rows
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import counted
from ganherd.util.files import sha256_of

if TYPE_CHECKING:
    from ganherd.features.classifier import Classifier

SPLITS = 10
HEAD = (
    "the network of FID ends before its classifier: give one with --head FILE.npz, an array weight [classes, 2048] and maybe "
    "bias; the score's authors take softmax/weights of TensorFlow's classify_image_graph_def.pb (2015-12-05) without a bias"
)
FEW = 100  # samples in a split; with fewer there is a warning


def inception_score(logits: Tensor, splits: int = SPLITS) -> tuple[float, float]:
    """Return (mean, standard deviation) over the splits of logits [n, classes], taken in their order.

    >>> inception_score(torch.eye(4).repeat(5, 1) * 1000, splits=1)[0]
    4.0
    """
    logs = logits.double().log_softmax(1)
    scores = torch.stack([_one(part) for part in logs.tensor_split(splits)])
    return float(scores.mean()), float(scores.std()) if len(scores) > 1 else math.nan


def _one(logs: Tensor) -> Tensor:
    """Return exp of the mean divergence of p(y | x) from p(y) of one split, given log p(y | x) [n, classes]."""
    marginal = logs.exp().mean(0, keepdim=True).log()
    return (logs.exp() * (logs - marginal)).nan_to_num(0.0).sum(1).mean().exp()


def measure_classifier(material: ScoringContext) -> ScoreEntry:
    """Measure with the network of the feature scores if it predicts the data's classes, otherwise with the data's classifier."""
    if _tells_classes(material) and (logits := material.features.logits) is not None:
        return _measure(material, logits, material.reference.described(material.features))
    judge, x = material.classifier, material.drawn.x
    return _measure(material, torch.from_numpy(judge.logits(x)), judge.described(len(x)), judge)


def _tells_classes(material: ScoringContext) -> bool:
    """Return whether the network of the feature scores predicts the classes of the data; Inception predicts others."""
    try:
        return not material.reference.network.as_inception
    except MetricSkipped:
        return False


def measure_inception(material: ScoringContext) -> ScoreEntry:
    """Measure with the Inception network and a classifier head."""
    reference = material.reference
    if not reference.network.as_inception:
        raise MetricSkipped(
            f"the network here is {reference.network.name}: give --network inception and a classifier --head"
        )
    fake = material.features
    if fake.logits is None:
        raise MetricSkipped(HEAD)
    described = reference.described(fake)
    if reference.head is not None:
        described["head"] = f"{reference.head.name} (sha256 {sha256_of(reference.head)[:12]}…)"
    return _measure(material, fake.logits, described)


def _measure(
    material: ScoringContext, logits: Tensor, described: ScoreEntry, judge: Classifier | None = None
) -> ScoreEntry:
    """Return the score of the logits of the samples of the mixture.

    Args:
        material: What is scored.
        logits: The logits [n, classes].
        described: How they were computed, for scores.json.
        judge: The classifier that gave them; None: the network of the other scores.
    """
    n = len(logits)
    splits = SPLITS if n >= 2 * SPLITS else 1
    order = torch.from_numpy(shuffle(n, "inception score", material.seed)).to(logits.device)
    value, std = inception_score(logits[order], splits)
    out: ScoreEntry = {"value": value, **described, "splits": splits, "classes": logits.shape[1]}
    out.pop("real_samples", None)  # nothing is compared with them
    if splits > 1:
        how = f"{splits} splits of {n // splits:,}"
        out |= {"std": std, "interval": intervals.around(value, std / math.sqrt(splits), how, splits - 1)}
    if material.per:
        out |= _judged_groups(material, judge) if judge else _groups(material)
    if n // splits < FEW:
        out["warning"] = (
            f"a split has only {counted(n // splits, 'samples')} for {counted(logits.shape[1], 'classes')}: ask for more"
        )
    return out


def _groups(material: ScoringContext) -> ScoreEntry:
    """Return the score of every class, member or neighbourhood, from the network's logits."""
    groups = [group for group in wanted_groups(material) if group.fake.logits is not None]
    values = [inception_score(group.fake.logits, 1)[0] for group in groups if group.fake.logits is not None]
    return entries(str(material.per), groups, values)


def _judged_groups(material: ScoringContext, judge: Classifier) -> ScoreEntry:
    """Return the score of every class, member or neighbourhood, from logits of the classifier of the data."""
    drawn, rows = wanted_rows(material)
    logits = torch.from_numpy(judge.logits(drawn.x))
    several = (one for one in rows if len(one.index) > 1)
    return of_rows(material, several, lambda one: inception_score(logits[one.index], 1)[0])
