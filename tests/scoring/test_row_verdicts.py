"""Verdicts on tables: herds of known kinds, whose samples are made by functions, get the right word on both embedded tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ganherd.data.dataset import Dataset, load
from ganherd.data.units import comparable
from ganherd.features.material import DrawnSamples, ScoringContext
from ganherd.features.real_features import RealFeatures
from ganherd.recipe.schema import DataConfig
from ganherd.scoring.verdicts.joining import judge_herd
from ganherd.scoring.verdicts.measurement import EvidenceCollector

Make = Callable[
    [np.random.Generator, np.ndarray, int], np.ndarray
]  # (random, standardised rows of a class, n) -> [n, d]
LONG = 5000


@dataclass(frozen=True)
class FunctionHerd:
    """One member for each class, whose standardised rows a function makes; it has the interface of a mixture."""

    data: Dataset
    make: Make
    weights: np.ndarray
    step: int = LONG
    replicas: int = 1
    takes_label: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return self.data.labels

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def label_of(self) -> np.ndarray:
        return np.arange(len(self.data.labels))

    def sample(self, n: int, label: Any = None, seed: int = 0, replica: int = 0, watch: Any = None) -> DrawnSamples:
        random = np.random.default_rng([seed, n])
        weights = self.weights if label is None else np.eye(len(self.weights))[self.labels.index(label)]
        member = np.sort(random.choice(len(weights), n, p=weights))
        rows, data = comparable(self.data.x, self.data), self.data
        made = [self.make(random, rows[data.y == m], int((member == m).sum())) for m in np.unique(member)]
        x = np.concatenate(made) * np.array(data.scale) + np.array(data.offset)
        return DrawnSamples(x.astype(np.float32), member, member)


def gaussian(random: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
    return random.multivariate_normal(rows.mean(0), np.cov(rows, rowvar=False), n)


def collapsed(random: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
    return rows[random.integers(2, size=n)] + 0.02 * random.standard_normal((n, rows.shape[1]))


def memorised(random: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
    return rows[random.integers(len(rows), size=n)] + 1e-3 * random.standard_normal((n, rows.shape[1]))


def independent(random: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
    """Return noise of twice the spread of the class, as an early generator has it, without its correlations."""
    return rows.mean(0) + 2 * rows.std(0) * random.standard_normal((n, rows.shape[1]))


def shifted(random: np.random.Generator, rows: np.ndarray, n: int) -> np.ndarray:
    return gaussian(random, rows, n) + 3.0


@pytest.fixture(scope="module", params=["wine", "breast_cancer"])
def collector(request: pytest.FixtureRequest) -> EvidenceCollector:
    return EvidenceCollector(RealFeatures(load(DataConfig(source=request.param))))


@pytest.mark.parametrize(
    ("make", "steps", "words"),
    [
        (gaussian, LONG, {"good"}),
        (collapsed, LONG, {"collapsed"}),
        (memorised, LONG, {"memorising"}),
        (independent, 100, {"undertrained"}),
        (shifted, LONG, {"unlike the data"}),
    ],
)
def test_a_herd_of_a_known_kind_gets_the_right_verdict(
    collector: EvidenceCollector, make: Make, steps: int, words: set[str]
) -> None:
    data = collector.data
    herd = FunctionHerd(data, make, np.bincount(data.y) / len(data.y), steps)
    material = ScoringContext(herd, data, samples=1000, against=collector.reference)  # type: ignore[arg-type]
    verdict = judge_herd(collector.herd(material), list(collector.parts(material)), steps=steps)
    assert verdict.word in words, verdict.sentence


@dataclass(frozen=True)
class Swapped(FunctionHerd):
    """Members that make the rows of the next class."""

    def sample(self, n: int, label: Any = None, seed: int = 0, replica: int = 0, watch: Any = None) -> DrawnSamples:
        drawn = super().sample(n, label, seed, replica, watch)
        member = (drawn.member - 1) % len(self.labels)
        return DrawnSamples(drawn.x, member, member)


@pytest.mark.parametrize(("herd", "word"), [(FunctionHerd, "good"), (Swapped, "unlike the data")])
def test_classes_of_few_rows_are_judged_by_their_class(herd: type[FunctionHerd], word: str) -> None:
    """Two classes of wine have fewer rows than a comparison needs."""
    data = load(DataConfig(source="wine"))
    collector = EvidenceCollector(RealFeatures(data))
    faked = herd(data, gaussian, np.bincount(data.y) / len(data.y))
    material = ScoringContext(faked, data, samples=1000, against=collector.reference)  # type: ignore[arg-type]
    parts = list(collector.parts(material))
    assert min(part.evidence.compared for part in parts) < 24
    verdict = judge_herd(collector.herd(material), parts, steps=LONG)
    assert verdict.word == word, verdict.sentence


def test_a_table_with_equal_rows_is_judged_as_without() -> None:
    """Each row of such a table has its twin as its nearest neighbour, which no sample has."""
    data = load(DataConfig(source="wine"))
    twice = {name: np.concatenate([getattr(data, name)] * 2) for name in ("x", "y")}
    words = []
    for rows in (data, replace(data, **twice)):
        collector = EvidenceCollector(RealFeatures(rows))
        faked = FunctionHerd(rows, gaussian, np.bincount(rows.y) / len(rows.y))
        material = ScoringContext(faked, rows, samples=1000, against=collector.reference)  # type: ignore[arg-type]
        words.append([part.evidence.recognised_real for part in collector.parts(material)])
    assert words[0] == words[1] and min(words[0]) < 1
