"""Cut samples into classes, members or neighbourhoods, and choose the data that each group is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ganherd.features.material import DrawnSamples, ScoredNeighbourhood, ScoringContext
from ganherd.runs.score_entry import GroupCounts, Groups, ScoreEntry
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.features.extract import ExtractedFeatures

KINDS = ("class", "member", "neighbourhood")


@dataclass(frozen=True)
class SampleGroup:
    """Some of the drawn samples, and the classes of the data that they are compared with; empty: all of the data."""

    name: str
    index: np.ndarray  # int64 [n]
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class FeatureGroup:
    """The features of a group of samples, and those of the data that they are compared with."""

    name: str
    fake: ExtractedFeatures
    real: ExtractedFeatures


def of_grid(mixture: Any, replica: int) -> list[ScoredNeighbourhood] | None:
    """Return the neighbourhoods of a replica's cells in their order, with their weights; None without a grid."""
    if (grid := getattr(mixture, "neighbourhoods", None)) is None:
        return None
    return [ScoredNeighbourhood(one.members, one.weights) for one in grid.all if one.replica == replica]


def refuse_impossible(per: str | None, material: ScoringContext) -> None:
    """Raise a `UserError` before anything is measured if --per asks for groups that do not exist."""
    if per not in (None, *KINDS):
        raise UserError(f"--per {per}: choose class, member or neighbourhood.")
    if per in ("member", "neighbourhood") and not material.has_generators:
        raise UserError(f"--per {per} needs a run: samples alone do not say which member made them.")
    if per == "class" and not material.has_labels:
        raise UserError("--per class needs samples with labels, and these have none of the data's.")
    if per == "neighbourhood":
        _refuse_neighbourhoods(material)


def _refuse_neighbourhoods(material: ScoringContext) -> None:
    """Raise a `UserError` for neighbourhoods that are missing, or whose members or weights are impossible."""
    members = len(material.mixture.label_of)
    if not material.neighbourhoods:
        raise UserError(
            "scores of neighbourhoods need the lists of their members, which runs with strategy.name cellular have: "
            "choose --per member for others."
        )
    for number, one in enumerate(material.neighbourhoods):
        listed = list(one.members)
        if not listed or len(set(listed)) < len(listed) or not all(0 <= m < members for m in listed):
            raise UserError(
                f"neighbourhood {number} lists {listed}: wanted are members from 0 to {members - 1}, each once."
            )
        if one.weights is not None and (
            len(one.weights) != len(listed) or min(one.weights) < 0 or not sum(one.weights) > 0
        ):
            raise UserError(f"neighbourhood {number} needs a weight of at least 0 for each member, and not all 0.")


def mixtures_of(material: ScoringContext, per: str) -> dict[str, Any]:
    """Return the mixture of each member alone, or of each neighbourhood, by its number."""
    members = len(material.mixture.label_of)
    weights = np.eye(members)
    if per == "neighbourhood":
        cells = material.neighbourhoods or ()
        weights = np.zeros((len(cells), members))
        for row, cell in zip(weights, cells, strict=True):
            row[list(cell.members)] = 1.0 if cell.weights is None else cell.weights
    return {str(number): replace(material.mixture, weights=row / row.sum()) for number, row in enumerate(weights)}


def _rows_by_neighbourhood(material: ScoringContext, drawn: DrawnSamples) -> list[SampleGroup]:
    """Return samples of every neighbourhood: those of its members, by their weights.

    All have equally many samples, since a distance depends on their number: as many as the neighbourhood whose scarcest
    member makes the fewest.
    """
    label_of = np.asarray(material.mixture.label_of)
    there = {m: np.flatnonzero(drawn.member == m) for m in range(len(label_of))}
    each = [(one.members, shares_of(one)) for one in material.neighbourhoods or ()]
    fits = [min(int(len(there[m]) / w + 1e-9) for m, w in zip(own, ws, strict=True) if w > 0) for own, ws in each]
    total = min((count for count in fits if count), default=0)
    out = []
    for number, (members, weights) in enumerate(each):
        counts = _counts(weights, total)
        parts = [there[m][:count] for m, count in zip(members, counts.tolist(), strict=True)]
        out.append(SampleGroup(str(number), np.sort(np.concatenate(parts)), _classes(label_of[list(members)].tolist())))
    return out


def _counts(weights: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers in the proportions of the weights that add up to the total; the largest remainders are rounded up.

    >>> _counts(np.array([0.5, 0.3, 0.2]), 7).tolist()
    [4, 2, 1]
    """
    exact = weights * total + 1e-9
    counts = np.floor(exact).astype(np.int64)
    more = np.argsort(counts - exact, kind="stable")[: total - counts.sum()]
    counts[more] += 1
    return counts


def shares_of(one: ScoredNeighbourhood) -> np.ndarray:
    """Return the weights of the members, float64 [members], which sum to 1."""
    weights = np.ones(len(one.members)) if one.weights is None else np.asarray(one.weights, np.float64)
    return np.asarray(weights / weights.sum())


def _classes(labels: list[int]) -> tuple[int, ...]:
    """Return the different classes of members, sorted; () if one of the labels is -1, a member that represents no class."""
    return () if min(labels) < 0 else tuple(sorted(set(labels)))


def asked_by_class(material: ScoringContext) -> ScoreEntry:
    """Return the number of samples that were requested of each class, as an entry of scores.json."""
    y, labels = material.by_label.y, material.dataset.labels
    counts = {name: int((y == k).sum()) for k, name in enumerate(labels) if (y == k).any()}
    return {"per_class_samples": counts, "fewest": min(counts.values(), default=0)}


def wanted_rows(material: ScoringContext) -> tuple[DrawnSamples, list[SampleGroup]]:
    """Return samples, and the groups of them that --per asks for; members have equally many samples."""
    drawn = material.drawn if material.per == "class" else material.by_member
    if material.per == "class":
        names = enumerate(material.dataset.labels)
        groups = [SampleGroup(name, np.flatnonzero(drawn.y == k), (k,)) for k, name in names]
    elif material.per == "member":
        labels = enumerate(int(k) for k in material.mixture.label_of)
        groups = [SampleGroup(str(m), np.flatnonzero(drawn.member == m), _classes([k])) for m, k in labels]
    else:
        groups = _rows_by_neighbourhood(material, drawn)
    return drawn, [group for group in groups if len(group.index)]


def of_members(material: ScoringContext, entry: Callable[[DrawnSamples, list[SampleGroup]], ScoreEntry]) -> ScoreEntry:
    """Return the fields of scores.json for the groups that --per asks for, of a score whose value per class is always known.

    Args:
        material: What is scored.
        entry: Measures members or neighbourhoods: takes samples and their groups, and returns the fields. For --per class, the
            numbers of samples of the classes are returned instead.
    """
    if material.per is None:
        return {}
    return asked_by_class(material) if material.per == "class" else entry(*wanted_rows(material))


def by_class(material: ScoringContext, fake: ExtractedFeatures) -> list[FeatureGroup]:
    """Return a group for each class that occurs in the data: its real rows, and the samples with this label (maybe none)."""
    reference, labels = material.reference, material.dataset.labels
    present = [k for k in range(len(labels)) if (reference.real.y == k).any()]
    return [FeatureGroup(labels[k], fake.rows(fake.y == k), reference.real_of((k,))) for k in present]


def wanted_groups(material: ScoringContext) -> list[FeatureGroup]:
    """Return the groups that --per asks for, with their features; groups with fewer than two samples or real rows are left out."""
    if material.per == "class":
        groups = by_class(material, material.features)
    else:
        fake, (_, rows) = material.member_features, wanted_rows(material)
        groups = [FeatureGroup(one.name, fake.rows(one.index), material.reference.real_of(one.classes)) for one in rows]
    return [group for group in groups if min(len(group.fake), len(group.real)) >= 2]


def entries(per: str, groups: list[FeatureGroup], values: list[float]) -> ScoreEntry:
    """Return the values of groups of features as an entry of scores.json."""
    return in_groups(
        per, {g.name: v for g, v in zip(groups, values, strict=True)}, {g.name: len(g.fake) for g in groups}
    )


def of_rows(
    material: ScoringContext, groups: Iterable[SampleGroup], value: Callable[[SampleGroup], float | None]
) -> ScoreEntry:
    """Return the value of each group of samples as an entry of scores.json."""
    values, counts = {}, {}
    for group in groups:
        values[group.name], counts[group.name] = value(group), len(group.index)
    return in_groups(str(material.per), values, counts)


def in_groups(per: str, values: Groups, counts: GroupCounts) -> ScoreEntry:
    """Return values and numbers of samples by name, under `per_class`, `per_member` or `per_neighbourhood`."""
    fewest = min(counts.values(), default=0)
    return cast(ScoreEntry, {f"per_{per}": values, f"per_{per}_samples": counts, "fewest": fewest})
