"""The keys and types of a score in scores.json.

They are typed dictionaries, because `ganherd score --json` and the Python API hand them out as plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

Groups = Mapping[str, float | None]  # values by the name of a class, member or neighbourhood
GroupCounts = Mapping[str, int]


class ScoreInterval(TypedDict):
    """A confidence interval of a value."""

    low: float
    high: float
    level: float
    how: str  # the method, in words
    cut: NotRequired[bool]  # whether the interval was cut at the smallest or largest possible value


class GroupKid(TypedDict):
    """The KID within each class, and their mean; a part of the score `ifid`."""

    value: float
    per_class: dict[str, float]


class ScoreEntry(TypedDict, total=False):
    """One score, and what it was measured with. Every metric writes `value`, `samples` and `network`."""

    value: float | None
    interval: ScoreInterval
    samples: int
    network: str
    seed: int
    replica: int
    resizing: str  # what is done to an image before the network sees it
    warning: str
    unit: str
    of: int  # the largest possible value, if the value is a count
    mean: float | None  # mean over the classes, if the value is that of the worst class
    std: float | None
    error: float | None  # standard error
    by_chance: float  # the value that perfect samples would have by chance
    real_interval: ScoreInterval  # interval of the value that real data would have

    # features: what they were computed from
    precision: str
    dimension: int
    real: str
    real_samples: int
    held_out_accuracy: float | None  # of the classifier behind the features
    held_out_samples: int  # rows of equally frequent classes that would give the same standard error
    head: str
    neighbours: int
    subsets: int
    subset_size: int
    splits: int
    classes: int
    kid: GroupKid

    # classes, members and neighbourhoods
    per_class: Groups
    per_class_samples: GroupCounts
    per_member: Groups
    per_member_samples: GroupCounts
    per_member_gap: Groups
    per_member_high_quality: Groups
    per_member_kl: Groups
    per_neighbourhood: Groups
    per_neighbourhood_samples: GroupCounts
    per_neighbourhood_kl: Groups
    fewest: int  # the smallest number of samples of a group
    mean_member: float
    mean_member_kl: float
    best_member: int | None
    best_replica: int | None
    best_value: float | None

    # several seeds
    per_seed: list[float | None]
    seeds: list[int]

    # histogram
    expected: Groups
    reference: str  # which distribution the classes are compared with

    # modes
    represented: int
    high_quality: float
    high_quality_interval: ScoreInterval
    reverse_kl: float | None
    kl: float
    counts: list[int]
    modes: str
    within: str

    # columns
    per_column: Groups  # the largest values first
    worst_column: str

    # memorisation
    nearer: float
    nearer_error: float
    ratio: float | None
    held_out: int
    training: int

    # annealed importance sampling
    gap: float
    kde: float
    kde_samples: int
    variance: float
    temperatures: int
    chains: int

    # contests of runs (GAM)
    worst: list[float | None]
    judges: list[int]
    kinds: list[str]
    real_errors: list[float | None]
    by_judge: dict[str, list[float | None]]
    best_of_all: bool
    best_by: str
    thresholds: list[float]
    threshold_rule: str
    judged_by: str
    judges_mode: str
    won: int
    tied: int
    lost: int
    tie: float


# A `ScoreEntry` by the name of each metric. The key `skipped` has the reason for each metric that was left out.
Scores = dict[str, Any]
