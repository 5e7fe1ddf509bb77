"""A fake run folder and a fake mixture with the files and attributes that a report reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_fixtures import browser, visit

from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.runs.models import EventRecord, MetricsRecord, RunInfo

__all__ = ["browser", "visit"]


@dataclass
class FakeRun:
    path: Path
    recipe: Recipe = field(default_factory=Recipe)
    info_json: dict[str, Any] = field(default_factory=dict)
    metric_lines: list[dict[str, Any]] = field(default_factory=list)
    event_lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def info(self) -> RunInfo:
        return RunInfo.parse(self.info_json)

    @property
    def again(self) -> str:
        return RunFolder(self.path).again

    @property
    def checkpoints(self) -> Path:
        return RunFolder(self.path).checkpoints

    def save(self) -> None:
        """Write the files of the run, which the page reads in parts."""
        folder = RunFolder(self.path)
        folder.recipe_path.write_text(recipe_file.dump(self.recipe))
        folder.info_path.write_text(json.dumps(self.info_json))
        for path, lines in ((folder.metrics_path, self.metric_lines), (folder.events_path, self.event_lines)):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def metrics(self, most: int | None = None) -> list[MetricsRecord]:
        return [MetricsRecord.parse(line) for line in self.metric_lines]

    def events(self) -> list[EventRecord]:
        return [EventRecord.parse(line) for line in self.event_lines]


@dataclass(frozen=True)
class FakeDataset:
    x: np.ndarray
    y: np.ndarray
    labels: tuple[str, ...]
    name: str = "digits"
    notes: tuple[str, ...] = ("a fifth of each class is held out",)
    offset: float = 127.5
    scale: float = 127.5

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    @property
    def is_image(self) -> bool:
        return self.x.ndim == 4

    @property
    def kind(self) -> str:
        return "images" if self.is_image else "points"


@dataclass(frozen=True)
class FakeSamples:
    x: np.ndarray
    y: np.ndarray
    member: np.ndarray


@dataclass
class FakeMixture:
    """Replays the data it is given, one member for each class."""

    data: FakeDataset
    by_class: bool = True
    replicas: int = 1
    step: int = 3000

    @property
    def labels(self) -> tuple[str, ...]:
        return self.data.labels

    @property
    def is_image(self) -> bool:
        return self.data.is_image

    @property
    def kind(self) -> str:
        return self.data.kind

    @property
    def label_of(self) -> np.ndarray:
        return np.arange(len(self.labels)) if self.by_class else np.full(4, -1)

    @property
    def weights(self) -> np.ndarray:
        return np.full(len(self.label_of), 1 / len(self.label_of))

    def sample(self, n: int, label: str | None = None, seed: int = 0, replica: int = 0) -> FakeSamples:
        return self._sample(n, None if label is None else self.labels.index(label))

    def _sample(self, n: int, label: int | None) -> FakeSamples:
        pool = np.arange(len(self.data.x)) if label is None else np.flatnonzero(self.data.y == label)
        rows = np.resize(pool[::-1], n)
        member = np.arange(n) % 4 if label is None else np.full(n, label)
        return FakeSamples(self.data.x[rows], np.full(n, -1 if label is None else label), member)


def images(classes: int = 10, side: int = 8, channels: int = 1) -> FakeDataset:
    """Stripes: class k has k bright rows."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), 20)
    x = rng.integers(0, 60, (len(y), channels, side, side), dtype=np.uint8)
    for k in range(classes):
        x[y == k, :, : 1 + k % side] += 180
    return FakeDataset(x, y, tuple(str(k) for k in range(classes)))


def points() -> FakeDataset:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 8
    x = np.stack([np.cos(y * np.pi / 4), np.sin(y * np.pi / 4)], 1) + 0.03 * rng.standard_normal((400, 2))
    return FakeDataset(x.astype(np.float32), y, tuple("abcdefgh"), "ring8", (), 0.0, 1.0)


def losses(members: int, records: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    own = rng.standard_normal(members)
    return [
        {
            "step": 50 * (i + 1),
            "epoch": round(2.5 * (i + 1), 2),
            "seconds": 0.75 * (i + 1),
            "rate": 812.4,
            "loss_g": (2 * np.exp(-i / 15) + 0.3 * own + 0.1 * rng.standard_normal(members)).tolist(),
            "loss_d": (-3 * np.exp(-i / 20) - 0.4 + 0.1 * own + 0.05 * rng.standard_normal(members)).tolist(),
        }
        for i in range(records)
    ]


def some_scores(labels: tuple[str, ...]) -> dict[str, Any]:
    common = {"samples": 1000, "network": "digits cnn 1a2b3c4d", "seed": 0, "replica": 0}
    names = list(labels)
    accuracy = {n: 0.97 + 0.003 * (i % 8) for i, n in enumerate(names)}
    return {
        "label_accuracy": {"value": 0.986, **common, "per_class": accuracy, "held_out_accuracy": 0.9917},
        "histogram": {
            "value": 0.031,
            **common,
            "by_chance": 0.038,
            "per_class": {n: (0.9 + 0.02 * (i % 10)) / len(names) for i, n in enumerate(names)},
            "expected": {n: 1 / len(names) for n in names},
            "held_out_accuracy": 0.9917,
        },
        "diversity": {
            "value": 0.83,
            **common,
            "network": "pixels",
            "mean": 0.9,
            "per_class": {n: 0.83 + 0.02 * (i % 9) for i, n in enumerate(names)},
        },
    }


EVENTS: list[dict[str, Any]] = [
    {"step": 0, "event": "start", "members": 10},
    {"step": 500, "event": "checkpoint", "score": 0.2},
    {"step": 900, "event": "nan", "member": 3, "name": "member 3 (3)"},
    {"step": 900, "event": "repair", "member": 3, "reason": "it turned NaN", "from_step": 500, "lr_g": 1e-4},
    {"step": 1000, "event": "checkpoint", "score": 0.1},
    {"step": 1500, "event": "alarm", "what": "collapse", "member": 7, "spread": 0.08},
    {"step": 2000, "event": "checkpoint", "score": 0.05},
    {"step": 3000, "event": "finish", "seconds": 45.0},
]


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., FakeRun]:
    def make(
        *, members: int = 10, records: int = 60, state: str = "finished", labels: tuple[str, ...] = (), **extra: Any
    ) -> FakeRun:
        folder = tmp_path / "00001-digits-wcgan"
        folder.mkdir()
        if labels:
            (folder / "scores.json").write_text(json.dumps({"scores": some_scores(labels)}))
        info = {
            "state": state,
            "engine": {"name": "fused", "chunk": 10, "threads": 2, "device": "cpu"},
            "threads": 2,
            "seed": 0,
            "host": "somewhere",
            "command": "ganherd train digits-wcgan",
            "versions": {"ganherd": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        }
        values: dict[str, Any] = {
            "info_json": info,
            "metric_lines": losses(members, records),
            "event_lines": EVENTS,
        } | extra
        return FakeRun(folder, **values)

    return make


class Fakes:
    """The stand-ins, for tests that make their own."""

    dataset = FakeDataset
    mixture = FakeMixture
    images = staticmethod(images)
    points = staticmethod(points)


@pytest.fixture
def fakes() -> type[Fakes]:
    return Fakes
