"""Build the herds of every kind that verdicts must tell apart: trained ones, and faked ones that no training gives reliably."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ganherd.data.dataset import Dataset
from ganherd.mixture import mixture as mixtures
from ganherd.scoring.verdicts.judgement import Course
from verdict_training import CHANGES, Trainings

# Which verdicts are right for each kind of herd. Where two are listed, samples and records alone do not tell them apart.
RIGHT = {
    "healthy": {"good"},
    "undertrained": {"undertrained"},
    "collapsed": {"collapsed"},
    "mean images": {"collapsed", "undertrained"},
    "noise": {"unlike the data"},
    "memorised": {"memorising"},
    "wrong normalisation": {"unlike the data"},
    "dropped modes": {"collapsed"},
    "diverging": {"unstable"},
    "absurd learning rates": {"unstable", "collapsed", "unlike the data"},
    "one bad member": {"collapsed", "unlike the data"},  # and the verdict must name this member and no other
}
LONG = 5000  # steps of a faked herd, as after a long training: a short one may just be undertrained
Make = Callable[[np.random.Generator, int, int], np.ndarray]  # (random numbers, member, count) -> samples


@dataclass(frozen=True)
class Herd:
    """A herd to judge."""

    kind: str
    how: str  # "trained" or "faked"
    seed: int
    mixture: Any
    replica: int
    data: Dataset
    courses: list[Course]
    bad_member: int | None = None


@dataclass(frozen=True)
class FakedHerd:
    """Samples that a function makes, with the interface of a mixture."""

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    label_of: np.ndarray
    weights: np.ndarray
    make: Make
    step: int
    own_seed: int
    replicas: int = 1
    takes_label: bool = False

    def sample(self, n: int, label: Any = None, seed: int = 0, replica: int = 0, watch: Any = None) -> Any:
        random = np.random.default_rng([self.own_seed, seed, n])
        allowed = self.weights * (1.0 if label is None else self.label_of == label)
        member = np.sort(random.choice(len(allowed), n, p=allowed / allowed.sum()))
        x = np.concatenate([self.make(random, m, int((member == m).sum())) for m in np.unique(member)])
        order = random.permutation(n)
        return mixtures.Samples(x[order], self.label_of[member][order], member[order], self.labels)


@dataclass(frozen=True)
class WithBadMember:
    """A trained mixture in which one member's samples come from elsewhere."""

    good: Any
    replica: int
    member: int
    make: Make
    weights: np.ndarray
    replicas: int = 1
    takes_label: bool = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.good, name)

    def sample(self, n: int, label: Any = None, seed: int = 0, replica: int = 0, watch: Any = None) -> Any:
        drawn = replace(self.good, weights=self.weights).sample(n, label, seed, self.replica)
        rows = np.flatnonzero(drawn.member == self.member)
        if len(rows):
            drawn.x[rows] = self.make(np.random.default_rng([seed, 7]), self.member, len(rows))
        return drawn


class Builder:
    """Build the herds of one data set from its trainings."""

    def __init__(self, trainings: Trainings) -> None:
        self.trainings, self.setting, self.seed = trainings, trainings.setting, trainings.seed
        self.rows, self.data = trainings.rows, trainings.data
        self.train_rows = trainings.groups(self.rows.y)  # of each member, or one group that all share

    def herds(self, kind: str) -> Iterator[Herd]:
        """Yield the herds of one kind: first those that were trained."""
        for training in self.trainings.all():
            if training.kind == kind:
                trained = self.trainings.train(training)
                for r, own in enumerate(trained.courses):
                    yield Herd(kind, "trained", training.seed + r, trained.mixture, r, trained.data, own)
        if kind == "one bad member":
            yield from self._with_one_bad()
        for number in range(2):
            seed = self.seed + 90 + number
            makers = self._makers(np.random.default_rng(seed))
            if kind in makers:
                yield self._fake(kind, seed, makers[kind])
            if kind == "memorised" and not self.setting.few:
                yield self._fake(kind, seed + 2, makers[kind])
            if kind == "mean images":
                yield self._fake(kind, seed + 2, self._means(3.0 + 6.0 * number))

    def _fake(self, kind: str, seed: int, make: Make) -> Herd:
        by_class = self.setting.members is None
        members = self.setting.members or len(self.train_rows)
        label_of = np.arange(members) if by_class else np.full(members, -1)
        labels = self.data.labels if by_class else ()
        herd = FakedHerd(labels, self.data.shape, label_of, np.full(members, 1 / members), make, LONG, seed)
        return Herd(kind, "faked", seed, herd, 0, self.data, [Course(LONG)] * members)

    def _makers(self, random: np.random.Generator) -> dict[str, Make]:
        """Return a function that makes the samples of each kind that is faked."""
        tiny = 0.01 if self.data.is_image else 3e-4  # points lie closer together than images
        trained, replica = self.trainings.healthy_herd(int(random.integers(self.trainings.healthy)))
        few, first = int(random.integers(1, 5)), int(random.integers(1 << 30))
        change = list(CHANGES.values())[int(random.integers(len(CHANGES)))]
        groups = len(self.train_rows)

        def good(r: np.random.Generator, m: int, n: int) -> np.ndarray:
            alone = replace(trained.mixture, weights=np.eye(len(trained.mixture.label_of))[m])
            return np.asarray(alone.sample(n, seed=int(r.integers(1 << 30)), replica=replica).x)

        def collapsed(r: np.random.Generator, m: int, n: int) -> np.ndarray:
            shown = good(np.random.default_rng([first, m]), m, few)
            return self._jitter(r, shown[r.integers(few, size=n)], 0.02)

        def dropped(r: np.random.Generator, m: int, n: int) -> np.ndarray:
            many = good(r, m, 4 * n)
            return many[self.trainings.stays(many, m % groups)][:n]

        return {
            "collapsed": collapsed,
            "noise": lambda r, m, n: self._noise(r, n),
            "memorised": lambda r, m, n: self._jitter(r, self.rows.x[r.choice(self.train_rows[m % groups], n)], tiny),
            "wrong normalisation": lambda r, m, n: change(good(r, m, n)),
            "dropped modes": dropped,
            "mean images": self._means(4.0),
        }

    def _means(self, percent: float) -> Make:
        means = [self.rows.x[rows].mean(0) for rows in self.train_rows]
        return lambda r, m, n: self._jitter(r, np.repeat(means[m % len(means)][None], n, 0), percent / 100)

    def _jitter(self, random: np.random.Generator, x: np.ndarray, share: float) -> np.ndarray:
        """Add noise of a share of the data's range."""
        reach = float(self.rows.x.max()) - float(self.rows.x.min())
        noisy = x.astype(np.float64) + share * reach * random.standard_normal(x.shape)
        return noisy.round().clip(0, 255).astype(np.uint8) if self.data.is_image else noisy.astype(np.float32)

    def _noise(self, random: np.random.Generator, n: int) -> np.ndarray:
        if self.data.is_image:
            return random.integers(0, 256, (n, *self.data.shape)).astype(np.uint8)
        low, high = float(self.rows.x.min()), float(self.rows.x.max())
        return (random.uniform(2 * low, 2 * high, (n, 2))).astype(np.float32)

    def _with_one_bad(self) -> Iterator[Herd]:
        """Yield healthy herds with one bad member: two with a trained one, two with a faked one."""
        broken = self.trainings.named("collapsed")
        random = np.random.default_rng(self.seed + 95)
        makers = self._makers(random)
        for number in range(4):
            herd_number = int(random.integers(self.trainings.healthy))
            trained, replica = self.trainings.healthy_herd(herd_number)
            good, own = trained.mixture, list(trained.courses[replica])
            member = int(random.integers(len(own)))
            weights = np.asarray(good.weights if good.weights.ndim == 1 else good.weights[replica])
            if number < 2:
                how, make = "trained", self._alone(broken.mixture, number)
                own[member] = broken.courses[number][member]
            else:
                how, make = "faked", makers["collapsed" if number == 2 else "noise"]
                own = [replace(course, steps=LONG) for course in own]
            herd = WithBadMember(good, replica, member, make, weights)
            yield Herd("one bad member", how, self.seed + herd_number, herd, 0, self.data, own, member)

    @staticmethod
    def _alone(mixture: Any, replica: int) -> Make:
        """Return a function that makes samples of single members of a mixture."""
        each = np.eye(len(mixture.label_of))
        return lambda r, m, n: replace(mixture, weights=each[m]).sample(n, replica=replica).x
