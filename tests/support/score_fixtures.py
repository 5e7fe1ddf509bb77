"""Stand-ins with the attributes of a Dataset and a Mixture: the digits, and mixtures that replay them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest


@dataclass(frozen=True)
class FakeDataset:
    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    labels: tuple[str, ...]
    offset: float = 127.5
    scale: float = 127.5
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def kind(self) -> str:
        return "images" if self.is_image else "points" if self.shape == (2,) else "rows"

    @property
    def digest(self) -> str:
        parts = (self.x, self.y, self.x_test, self.y_test)
        return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()


@dataclass(frozen=True)
class FakeSamples:
    x: np.ndarray
    y: np.ndarray
    member: np.ndarray


@dataclass
class FakeMixture:
    """Draws held-out rows of the data, after a change of the test's choosing; remembers what it was asked."""

    dataset: FakeDataset
    label_of: np.ndarray
    weights: np.ndarray
    change: Callable[[FakeSamples], FakeSamples] = lambda samples: samples
    calls: list[tuple[int, int | None]] = field(default_factory=list)
    replicas: int = 1
    step: int = 100

    @property
    def labels(self) -> tuple[str, ...]:
        return self.dataset.labels if (self.label_of >= 0).any() else ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    def sample(
        self, n: int, label: int | str | None = None, seed: int = 0, replica: int = 0, watch: object = None
    ) -> FakeSamples:
        label = self.labels.index(label) if isinstance(label, str) else label
        self.calls.append((n, label))
        rng = np.random.default_rng([seed, replica, 99 if label is None else label])
        if label is not None:
            member = np.full(n, int(np.flatnonzero(self.label_of == label)[0]))
        else:
            member = rng.choice(len(self.weights), n, p=self.weights)
        y = self.label_of[member]
        pools = {int(k): np.flatnonzero(self.dataset.y_test == k) for k in np.unique(y)}
        anything = np.arange(len(self.dataset.x_test))
        rows = np.array([rng.choice(pools[int(k)] if k >= 0 else anything) for k in y])
        return self.change(FakeSamples(self.dataset.x_test[rows], y.astype(np.int64), member.astype(np.int64)))


@pytest.fixture(scope="session")
def digits() -> FakeDataset:
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = np.round(raw.images * (255 / 16)).astype(np.uint8)[:, None]  # [n, 1, 8, 8]
    y = raw.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1437], order[1437:]
    return FakeDataset("digits", x[train], y[train], x[test], y[test], tuple(str(k) for k in range(10)))


@pytest.fixture(scope="session")
def ring() -> FakeDataset:
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(8) / 8
    y = np.arange(2000) % 8
    x = np.stack([np.cos(angle), np.sin(angle)], 1)[y] + 0.02 * rng.standard_normal((2000, 2))
    x = x.astype(np.float32)
    return FakeDataset("ring8", x[:1600], y[:1600], x[1600:], y[1600:], tuple("abcdefgh"), 0.0, 1.0)


def replay(dataset: FakeDataset, **extra: object) -> FakeMixture:
    k = len(dataset.labels)
    return FakeMixture(dataset, np.arange(k), np.bincount(dataset.y, minlength=k) / len(dataset.y), **extra)  # type: ignore[arg-type]


@pytest.fixture(name="replay")
def replay_fixture() -> Callable[..., FakeMixture]:
    return replay


@pytest.fixture(scope="session")
def rgb() -> FakeDataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    return FakeDataset("rgb", x[:50], np.arange(50) % 2, x[50:], np.arange(10) % 2, ("a", "b"))
