"""Scores within each class and of each member: which samples are held against which of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ganherd.errors import UserError
from ganherd.scores.material import Material

if TYPE_CHECKING:
    from ganherd.scores.features import Features


@dataclass(frozen=True)
class Group:
    name: str
    fake: Features
    real: Features


def by_class(material: Material, fake: Features) -> list[Group]:
    """Every class of the data with the samples that carry its label, maybe none."""
    reference, labels = material.reference, material.dataset.labels
    present = [k for k in range(len(labels)) if (reference.real.y == k).any()]
    return [Group(labels[k], fake.rows(fake.y == k), reference.real_of(k)) for k in present]


def by_member(material: Material) -> list[Group]:
    """Every member with its samples, against the data of the class it stands for, or all of it."""
    fake, reference = material.member_features, material.reference
    label_of = [int(k) for k in material.mixture.label_of]
    return [Group(str(m), fake.rows(fake.member == m), reference.real_of(k)) for m, k in enumerate(label_of)]


def refuse_impossible(per: str | None, material: Material) -> None:
    """One sentence before anything is measured, where --per asks for what is not there."""
    if per not in (None, "class", "member"):
        raise UserError(f"--per {per}: choose class or member.")
    if per == "member" and not material.has_generators:
        raise UserError("--per member needs a run: samples alone do not say which member made them.")
    if per == "class" and not material.has_labels:
        raise UserError("--per class needs samples with labels, and these have none of the data's.")


def wanted_groups(material: Material) -> list[Group]:
    """The groups that --per asks for, each with at least two samples on both sides."""
    groups = by_member(material) if material.per == "member" else by_class(material, material.features)
    return [group for group in groups if min(len(group.fake), len(group.real)) >= 2]


def entries(per: str, groups: list[Group], values: list[float]) -> dict[str, Any]:
    """Values by name, how many samples each had, and the fewest of them."""
    counts = {group.name: len(group.fake) for group in groups}
    by_name = {group.name: value for group, value in zip(groups, values, strict=True)}
    return {f"per_{per}": by_name, f"per_{per}_samples": counts, "fewest": min(counts.values(), default=0)}
