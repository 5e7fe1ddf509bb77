"""Classes that are hard to tell apart and of unequal size: perfect samples are called neither bad nor worse than real data."""

from __future__ import annotations

import numpy as np
import pytest

from ganherd.data.dataset import Dataset, load
from ganherd.features.classifier import classifier_for
from ganherd.features.material import DrawnSamples
from ganherd.features.real_features import RealFeatures
from ganherd.metrics.label_accuracy import label_accuracy
from ganherd.metrics.statistics import intervals
from ganherd.recipe.schema import DataConfig
from ganherd.scoring.result import Score
from ganherd.scoring.score_table import standing
from ganherd.scoring.verdicts.judgement import judge
from ganherd.scoring.verdicts.measurement import EvidenceCollector

SIZES = (1000, 200, 1000)


def drawn(label: int, number: int, random: np.random.Generator) -> np.ndarray:
    """Bright lines on noise: rows in the classes 0 and 1, which are the same distribution, and columns in class 2."""
    x, places = random.integers(0, 60, (number, 1, 8, 8)), random.integers(1, 7, number)
    for image, place in zip(x, places, strict=True):
        image[0, *((place, slice(None)) if label < 2 else (slice(None), place))] += 180
    return x.astype(np.uint8)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("unequal") / "data.npz"
    x = np.concatenate([drawn(label, number, random) for label, number in enumerate(SIZES)])
    np.savez(path, x=x, y=np.repeat([0, 1, 2], SIZES))
    return load(DataConfig(source=str(path)))


def test_a_member_is_recognised_as_often_as_held_out_rows_of_its_own_class(data: Dataset) -> None:
    collector, random = EvidenceCollector(RealFeatures(data)), np.random.default_rng(1)
    for label in range(3):
        samples = DrawnSamples(drawn(label, 512, random), np.full(512, label), np.full(512, label))
        evidence = collector._evidence(samples, label)
        assert evidence.recognised == pytest.approx(evidence.recognised_real, abs=0.15)
        verdict = judge(evidence)
        assert verdict is None or verdict.word == "good"


def test_real_data_has_the_label_accuracy_of_equally_frequent_classes(data: Dataset) -> None:
    classifier, random = classifier_for(data), np.random.default_rng(2)
    x, y = np.concatenate([drawn(label, 334, random) for label in range(3)]), np.repeat([0, 1, 2], 334)
    value, _ = label_accuracy(classifier.predict(x), y, data.labels)
    real, rows = classifier.with_equal_classes
    assert real == pytest.approx(value, abs=0.06) and real < 0.8 < classifier.held_out_accuracy
    assert rows < classifier.held_out_samples == sum(SIZES) // 5
    entry = {
        "value": value,
        "interval": intervals.share(value, len(x)),
        "held_out_accuracy": real,
        "held_out_samples": rows,
    }
    assert standing(Score("label_accuracy", entry)).text == "like real data"
