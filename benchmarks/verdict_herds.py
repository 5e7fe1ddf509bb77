"""Build herds of every kind that verdicts must tell apart: trained ones, with their seeds stacked, and faked ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ganherd
from ganherd.data import dataset
from ganherd.data.dataset import Dataset
from ganherd.mixture import mixture as mixtures
from ganherd.recipe.schema import DataConfig
from ganherd.runs.folder import RunFolder
from ganherd.scoring.verdicts.course import courses
from ganherd.scoring.verdicts.judgement import Course
from verdict_data import DATA, Rows

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
    make: Callable[[np.random.Generator, int, int], np.ndarray]  # (random numbers, member, count) -> samples
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
    make: Callable[[np.random.Generator, int, int], np.ndarray]
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


@dataclass(frozen=True)
class Setting:
    """How herds are trained on a data set."""

    name: str
    members: int | None  # None: one for each class
    nets: dict[str, Any]
    loss: str
    lr: float
    train: dict[str, Any]
    steps: int
    healthy: int  # herds of the final table
    early: tuple[int, int]  # steps of undertrained herds
    few: int = 8  # rows of each class that a herd learns by heart; 0: it does not, whatever the number


_IMAGES = {"latent": 32, "generator": {"name": "small", "width": 128}, "discriminator": {"name": "small", "width": 128}}
_POINTS = {"latent": 8, "generator": {"name": "small", "width": 96}, "discriminator": {"name": "small", "width": 96}}
_WGAN = {"batch": 32, "n_critic": 3, "ema": 0.99}
SETTINGS = {
    "digits": Setting("digits", None, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 600, 8, (30, 60)),
    "letters": Setting("letters", None, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 600, 8, (30, 60)),
    "patches": Setting("patches", 2, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 1200, 10, (40, 80), 16),
    "blobs": Setting(
        "blobs", 2, _POINTS, "non-saturating", 3e-4, {"batch": 96, "n_critic": 1, "ema": 0.99}, 2500, 30, (60, 120), 0
    ),
}


class Builder:
    """Build the herds of one data set. Trainings are shared between kinds."""

    def __init__(self, name: str, folder: Path, seed: int, scale: float = 1.0) -> None:
        self.setting, self.folder, self.seed = SETTINGS[name], folder, seed
        self.rows = DATA[name]()
        folder.mkdir(parents=True, exist_ok=True)
        self.data = self._load(self.rows, "data")
        self.healthy_seeds = max(2, round(scale * self.setting.healthy))
        self._runs: dict[str, tuple[Any, list[list[Course]]]] = {}

    def herds(self) -> Iterator[Herd]:
        """Yield the herds of all kinds."""
        yield from self._trained("healthy", "healthy", self.healthy_seeds)
        for number, steps in enumerate(self.setting.early):
            yield from self._trained("undertrained", f"early {steps}", 2, steps=steps, seed=self.seed + 20 + 2 * number)
        yield from self._trained("collapsed", "collapsed", 2, seed=self.seed + 30, **_COLLAPSING)
        yield from self._trained("diverging", "diverging", 4, seed=self.seed + 40, **_DIVERGING)
        yield from self._trained("absurd learning rates", "absurd", 2, seed=self.seed + 50, **_ABSURD)
        if self.setting.few:
            few = {"rows": self._few_rows(), "own_data": True, "few": True}
            yield from self._trained("memorised", "few", 2, seed=self.seed + 60, **few)
        for i, rows in enumerate((self._changed(_half_contrast), self._changed(_inverted))):
            yield from self._trained("wrong normalisation", f"range {i}", 1, seed=self.seed + 70 + i, rows=rows)
        yield from self._trained("dropped modes", "dropped", 2, seed=self.seed + 80, rows=self._without_modes())
        yield from self._faked()
        yield from self._one_bad()

    # -- trained ----------------------------------------------------------------------------------------------------

    def _trained(self, kind: str, name: str, seeds: int, **how: Any) -> Iterator[Herd]:
        mixture, each, data = self._run(name, seeds, **how)
        for r in range(seeds):
            yield Herd(kind, "trained", how.get("seed", self.seed) + r, mixture, r, data, each[r])

    def _run(
        self,
        name: str,
        seeds: int,
        steps: int | None = None,
        seed: int | None = None,
        rows: Rows | None = None,
        own_data: bool = False,
        few: bool = False,
        **changes: Any,
    ) -> tuple[Any, list[list[Course]], Dataset]:
        """Train stacked replicas, or load them, and return the mixture, the courses of each replica and the data to judge by."""
        setting, run = self.setting, self.folder / name.replace(" ", "-")
        source = self.folder / "data.npz" if rows is None else rows.save(self.folder / f"{run.name}.npz")
        recipe: dict[str, Any] = {
            "data": {"source": str(source), "partition": "by-class" if setting.members is None else "all"},
            "nets": setting.nets,
            "loss": {"name": setting.loss},
            "optim": {"lr_g": setting.lr, "lr_d": setting.lr, "beta1": 0.5, "beta2": 0.9},
            "train": {**setting.train, "budget": f"{steps or setting.steps}steps"},
            "run": {
                "seed": self.seed if seed is None else seed,
                "sample_every": 0,
                "checkpoint_every": 0,
                "record_every": 20,
            },
            "engine": {"name": "fused", "threads": 1, "device": "cpu"},
            "herd": {"seeds": seeds} | ({} if setting.members is None else {"members": setting.members}),
        }
        if few:
            recipe["train"] |= {"batch": 16}
            recipe["optim"] |= {"lr_g": 3 * setting.lr, "lr_d": 3 * setting.lr}
        for section, values in copy.deepcopy(changes).items():
            recipe[section] = {**recipe.get(section, {}), **values}
        if not (run / "mixture").exists():
            ganherd.train(recipe, run=run, quiet=True, finishers=())
        mixture = mixtures.load(run)
        folder = RunFolder(run)
        members = len(mixture.label_of)
        flat = courses(members * seeds, mixture.step, folder.events())
        each = [flat[r * members : (r + 1) * members] for r in range(seeds)]
        data = dataset.load(DataConfig(source=str(source))) if own_data else self.data
        return mixture, each, data

    def _load(self, rows: Rows, name: str) -> Dataset:
        return dataset.load(DataConfig(source=str(rows.save(self.folder / f"{name}.npz"))))

    def _groups(self, y: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each member's data: those of each class if members represent classes, otherwise all."""
        if self.setting.members is None:
            return [np.flatnonzero(y == k) for k in np.unique(y)]
        return [np.arange(len(y))]

    def _few_rows(self) -> Rows:
        """Return data with few training rows, which a herd learns by heart; the others are held out."""
        classes = [np.flatnonzero(self.rows.y == k) for k in np.unique(self.rows.y)]  # one, if there are no labels
        learned = np.concatenate([rows[: self.setting.few] for rows in classes])
        rest = np.setdiff1d(np.arange(len(self.rows.x)), learned)
        x = np.concatenate([self.rows.x_test, self.rows.x[rest]])
        y = np.concatenate([self.rows.y_test, self.rows.y[rest]])
        return Rows(self.rows.x[learned], self.rows.y[learned], x, y)

    def _changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Rows:
        return replace(self.rows, x=change(self.rows.x), x_test=change(self.rows.x_test))

    def _without_modes(self) -> Rows:
        kept, held = (
            np.concatenate([rows[self._is_kept(x[rows], k)] for k, rows in enumerate(self._groups(y))])
            for x, y in ((self.rows.x, self.rows.y), (self.rows.x_test, self.rows.y_test))
        )
        return Rows(self.rows.x[kept], self.rows.y[kept], self.rows.x_test[held], self.rows.y_test[held])

    def _is_kept(self, x: np.ndarray, group: int) -> np.ndarray:
        """Return which samples stay if 35 % of a group are dropped: those beyond a line across its widest direction."""
        known = self.rows.x[self._groups(self.rows.y)[group]]
        known = known.reshape(len(known), -1).astype(np.float64)
        direction = np.linalg.svd(known - known.mean(0), full_matrices=False)[2][0]
        line = np.quantile((known - known.mean(0)) @ direction, 0.65)
        return np.asarray((x.reshape(len(x), -1) - known.mean(0)) @ direction < line)

    # -- faked ------------------------------------------------------------------------------------------------------

    def _fake(self, kind: str, seed: int, make: Callable[[np.random.Generator, int, int], np.ndarray]) -> Herd:
        groups = self._groups(self.rows.y)
        members = len(groups) if self.setting.members is None else self.setting.members
        label_of = np.arange(members) if self.setting.members is None else np.full(members, -1)
        labels = self.data.labels if self.setting.members is None else ()
        steps = 5000  # as after a long training: short ones may just be undertrained
        herd = FakedHerd(labels, self.data.shape, label_of, np.full(members, 1 / members), make, steps, seed)
        return Herd(kind, "faked", seed, herd, 0, self.data, [Course(steps)] * members)

    def _faked(self) -> Iterator[Herd]:
        for number in range(2):
            seed = self.seed + 90 + number
            random = np.random.default_rng(seed)
            fakes = self._fakes(random)
            for kind, make in fakes.items():
                yield self._fake(kind, seed, make)
            if not self.setting.few:
                yield self._fake("memorised", seed + 2, fakes["memorised"])
            yield self._fake("mean images", seed + 2, self._means(3.0 + 6.0 * number))

    def _fakes(self, random: np.random.Generator) -> dict[str, Callable[[np.random.Generator, int, int], np.ndarray]]:
        """Return a function that makes the samples of each kind."""
        train = self._groups(self.rows.y)
        tiny = 0.01 if self.data.is_image else 3e-4  # points lie closer together than images
        healthy, _, _ = self._run("healthy", self.healthy_seeds)
        replica = int(random.integers(self.healthy_seeds))
        few, first = int(random.integers(1, 5)), int(random.integers(1 << 30))
        change = [_half_contrast, _inverted, _dark][int(random.integers(3))]
        members = len(healthy.label_of)

        def good(r: np.random.Generator, m: int, n: int) -> np.ndarray:
            alone = replace(healthy, weights=np.eye(members)[m])
            return np.asarray(alone.sample(n, seed=int(r.integers(1 << 30)), replica=replica).x)

        def collapsed(r: np.random.Generator, m: int, n: int) -> np.ndarray:
            shown = good(np.random.default_rng([first, m]), m, few)
            return self._jitter(r, shown[r.integers(few, size=n)], 0.02)

        def dropped(r: np.random.Generator, m: int, n: int) -> np.ndarray:
            many = good(r, m, 4 * n)
            return many[self._is_kept(many, m % len(train))][:n]

        return {
            "collapsed": collapsed,
            "noise": lambda r, m, n: self._noise(r, n),
            "memorised": lambda r, m, n: self._jitter(r, self.rows.x[r.choice(train[m % len(train)], n)], tiny),
            "wrong normalisation": lambda r, m, n: change(good(r, m, n)),
            "dropped modes": dropped,
            "mean images": self._means(4.0),
        }

    def _means(self, percent: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
        means = [self.rows.x[g].mean(0) for g in self._groups(self.rows.y)]
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

    def _one_bad(self) -> Iterator[Herd]:
        """Yield healthy herds with one bad member: two with a trained one, two with a faked one."""
        good, each, _ = self._run("healthy", self.healthy_seeds)
        broken, broken_courses, _ = self._run("collapsed", 2, seed=self.seed + 30, **_COLLAPSING)
        random = np.random.default_rng(self.seed + 95)
        members = len(good.label_of)
        fakes = self._fakes(random)
        for number in range(4):
            replica, member = int(random.integers(self.healthy_seeds)), int(random.integers(members))
            weights = np.asarray(good.weights if good.weights.ndim == 1 else good.weights[replica])
            own = list(each[replica])
            if number < 2:
                label = int(good.label_of[member])
                alone = replace(broken, weights=np.eye(members)[member])

                def make(
                    r: Any, m: int, n: int, alone: Any = alone, number: int = number, label: int = label
                ) -> np.ndarray:
                    return alone.sample(n, replica=number).x

                own[member] = broken_courses[number][member]
            else:
                make = fakes["collapsed" if number == 2 else "noise"]
                own = [replace(one, steps=5000) for one in own]
            herd = WithBadMember(good, replica, member, make, weights)
            how = "trained" if number < 2 else "faked"
            yield Herd("one bad member", how, self.seed + replica, herd, 0, self.data, own, member)


_COLLAPSING = {
    "loss": {"name": "non-saturating"},
    "train": {"n_critic": 1, "skip_d": 20, "budget": "700steps"},
    "optim": {"lr_g": 5e-3, "lr_d": 2e-2},
}
_DIVERGING = {
    "loss": {"name": "wasserstein", "clip": 1e30},
    "train": {"n_critic": 1, "budget": "60steps"},
    "optim": {"lr_g": 1e3, "lr_d": 1e3},
    "run": {
        "repair": {"policy": "tell"},
        "watch": {"every": 20},
        "record_every": 20,
        "sample_every": 0,
        "checkpoint_every": 0,
    },
}
_ABSURD = {
    "loss": {"name": "non-saturating"},
    "train": {"n_critic": 1, "budget": "1100steps"},
    "optim": {"lr_g": 0.3, "lr_d": 0.3},
}


def _half_contrast(x: np.ndarray) -> np.ndarray:
    """Return data whose range was halved, as by a generator whose output is in 0 to 1 instead of -1 to 1."""
    return (x / 2 + 127.5).round().astype(np.uint8) if x.dtype == np.uint8 else (x / 2 + 6).astype(np.float32)


def _inverted(x: np.ndarray) -> np.ndarray:
    return 255 - x if x.dtype == np.uint8 else (3 * x).astype(np.float32)


def _dark(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) * 0.4).astype(np.uint8) if x.dtype == np.uint8 else (x + 4).astype(np.float32)
