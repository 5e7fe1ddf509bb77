"""What compare.json and downstream.json hold, as typed dictionaries: the files are plain JSON for other programs."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required, TypedDict

from ganherd.metrics.statistics.significance import Outcome
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval, Scores

RecipeJson = dict[str, Any]  # a recipe with every default written out


class ComparisonTraining(TypedDict):
    """What the runs of a comparison are trained with."""

    recipes: dict[str, RecipeJson]
    budget: str
    seeds: int


class ComparisonScoring(TypedDict):
    """What the runs are scored with."""

    metrics: list[str] | None
    samples: int | None
    network: str | None


class ComparisonData(TypedDict):
    """The data that all recipes train on."""

    name: str
    rows: NotRequired[str]  # images or points; older files do not say it
    sha256: str


class ScoreDifference(TypedDict, total=False):
    """The mean difference of a score between two recipes: that of the second minus that of the first."""

    value: Required[float]
    interval: ScoreInterval
    std: float | None
    per_seed: Required[list[float | None]]
    seeds: list[int]
    p: float  # of the difference by itself
    p_corrected: float  # by Holm's method, for the number of tests in its family
    direction: Outcome  # better or worse, however certain it is
    verdict: Required[Outcome]  # by the corrected p-value


class ComparisonRow(TypedDict):
    """One recipe of a comparison: what it took, and its scores."""

    run: str
    members: int
    parameters: int | None  # not known of finished runs, like the following numbers of parameters and images
    generator_parameters: list[int]
    discriminator_parameters: int | None
    steps: int
    first: int  # steps of the run before it
    images: int | None
    device: str
    device_seconds: float
    wall_seconds: float | None
    scores: NotRequired[Scores]


class ComparisonBasis(TypedDict):
    """One of the ways to compare: all contenders at an equal budget, at equal images seen, or as finished runs."""

    entries: dict[str, ComparisonRow]
    differences: dict[str, dict[str, ScoreDifference]]
    # by metric, the pairs (better, worse) that are decided, among all pairs; older files do not have it
    decided: NotRequired[dict[str, list[tuple[str, str]]]]
    best: NotRequired[dict[str, str]]  # by metric, the contender that is better than every other


class Comparison(TypedDict, total=False):
    """The content of compare.json."""

    state: Required[str]
    training: Required[ComparisonTraining]
    wall: Required[dict[str, dict[str, float]]]
    scores: Required[dict[str, Scores]]
    scoring: ComparisonScoring
    data: ComparisonData
    primary: str  # the score that was declared before anything was trained; the others are corrected
    answer: str
    bases: dict[str, ComparisonBasis]


class AccuracyDifference(ScoreEntry, total=False):
    """How much the accuracy changes by generated images."""

    verdict: Required[Literal["helped", "hurt", "undecided"]]


# "with" is a keyword of Python, so this one cannot be written as a class
DownstreamRow = TypedDict(
    "DownstreamRow",
    {
        "real": int | Literal["all"],  # real images of each class
        "alone": ScoreEntry | None,
        "with": ScoreEntry | None,
        "difference": AccuracyDifference | None,
    },
)


class Downstream(TypedDict):
    """The content of downstream.json: what classifiers gain from the images of a run."""

    run: str
    data: str
    held_out: int
    generated: int
    seen: int
    classes: int
    fewest: int
    seeds: list[int]
    rows: list[DownstreamRow]
    left_out: list[int]
    files: NotRequired[dict[str, str]]
