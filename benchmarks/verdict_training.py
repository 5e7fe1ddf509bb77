"""Train the herds that verdicts are tested on: healthy ones, and those that break in a known way. Seeds are stacked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from verdict_data import DATA, Rows, dark, half_contrast, inverted

STACKED = 2  # healthy herds of one training; the table does not depend on how many processes train
CHANGES = {"half contrast": half_contrast, "inverted": inverted, "dark": dark}


@dataclass(frozen=True)
class Setting:
    """How herds are trained on a data set."""

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
_GAN = {"batch": 96, "n_critic": 1, "ema": 0.99}
SETTINGS = {
    "digits": Setting(None, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 600, 10, (30, 60)),
    "blobs": Setting(2, _POINTS, "non-saturating", 3e-4, _GAN, 2500, 16, (60, 120), 0),
    "patches": Setting(2, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 1200, 12, (40, 80), 16),
    "letters": Setting(None, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 2000, 10, (30, 60)),
    "shapes": Setting(None, _IMAGES, "wasserstein-gp", 5e-4, _WGAN, 2000, 12, (30, 60)),
}

_COLLAPSING = {
    "loss": {"name": "non-saturating"},
    "train": {"n_critic": 1, "skip_d": 20, "budget": "700steps"},
    "optim": {"lr_g": 5e-3, "lr_d": 2e-2},
}
_DIVERGING = {
    "loss": {"name": "wasserstein", "clip": 1e30},
    "train": {"n_critic": 1, "budget": "60steps"},
    "optim": {"lr_g": 1e3, "lr_d": 1e3},
    "run": {"repair": {"policy": "tell"}, "watch": {"every": 20}},
}
_ABSURD = {
    "loss": {"name": "non-saturating"},
    "train": {"n_critic": 1, "budget": "1100steps"},
    "optim": {"lr_g": 0.3, "lr_d": 0.3},
}


@dataclass(frozen=True)
class Training:
    """One run: herds of one kind, with stacked seeds."""

    kind: str
    name: str  # of its folder
    seed: int  # the first one
    seeds: int = 2
    steps: int | None = None  # None: those of the setting
    rows: str = "all"  # the rows that it is trained on: all, few, without modes, or all with one of `CHANGES`
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the recipe


@dataclass(frozen=True)
class TrainedHerds:
    """A finished training."""

    mixture: Any
    courses: list[list[Course]]  # of each member, by replica
    data: Dataset  # to judge by: what it was trained on if these are few rows, otherwise the whole data set


class Trainings:
    """All trainings on one data set, each in its own folder."""

    def __init__(self, name: str, folder: Path, seed: int, scale: float = 1.0) -> None:
        """Write the data.

        Args:
            name: The data set.
            folder: The folder of all runs on it.
            seed: The first seed of the healthy herds; those of other kinds follow from it.
            scale: The share of the healthy herds.
        """
        self.setting, self.folder, self.seed = SETTINGS[name], folder, seed
        self.rows = DATA[name]()
        folder.mkdir(parents=True, exist_ok=True)
        self.data = _load(self._source("all"))
        self.healthy = max(STACKED, STACKED * round(scale * self.setting.healthy / STACKED))

    def all(self) -> list[Training]:
        """Return all trainings, with the longest ones first."""
        first, few = self.seed, {"train": {"batch": 16}, "optim": {f"lr_{net}": 3 * self.setting.lr for net in "gd"}}
        early, late = self.setting.early
        listed = [Training("healthy", f"healthy-{r}", first + r, STACKED) for r in range(0, self.healthy, STACKED)]
        listed.append(Training("dropped modes", "dropped", first + 80, rows="without modes"))
        if self.setting.few:
            listed.append(Training("memorised", "few", first + 60, rows="few", changes=few))
        return [
            *listed,
            Training("wrong normalisation", "range-0", first + 70, 1, rows="half contrast"),
            Training("wrong normalisation", "range-1", first + 71, 1, rows="inverted"),
            Training("absurd learning rates", "absurd", first + 50, changes=_ABSURD),
            Training("collapsed", "collapsed", first + 30, changes=_COLLAPSING),
            Training("diverging", "diverging", first + 40, 4, changes=_DIVERGING),
            Training("undertrained", "early-0", first + 20, steps=early),
            Training("undertrained", "early-1", first + 22, steps=late),
        ]

    def train(self, training: Training) -> TrainedHerds:
        """Return a finished training; train it first if its folder has no mixture."""
        run = self.folder / training.name
        source = self._source(training.rows)
        if not (run / "mixture").exists():
            ganherd.train(self._recipe(training, source), run=run, quiet=True, finishers=())
        mixture = mixtures.load(run)
        members = len(mixture.label_of)
        flat = courses(members * training.seeds, mixture.step, RunFolder(run).events())
        by_replica = [flat[r * members : (r + 1) * members] for r in range(training.seeds)]
        return TrainedHerds(mixture, by_replica, _load(source) if training.rows == "few" else self.data)

    def named(self, name: str) -> TrainedHerds:
        """Return the training of this name."""
        return self.train(next(training for training in self.all() if training.name == name))

    def healthy_herd(self, number: int) -> tuple[TrainedHerds, int]:
        """Return the training of a healthy herd, and its replica there."""
        return self.named(f"healthy-{number - number % STACKED}"), number % STACKED

    def groups(self, y: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each member's data: those of each class if members represent classes, otherwise all."""
        if self.setting.members is None:
            return [np.flatnonzero(y == k) for k in np.unique(y)]
        return [np.arange(len(y))]

    def stays(self, x: np.ndarray, group: int) -> np.ndarray:
        """Return which samples stay if 35 % of a group are dropped: those beyond a line across its widest direction."""
        known = self.rows.x[self.groups(self.rows.y)[group]]
        known = known.reshape(len(known), -1).astype(np.float64)
        direction = np.linalg.svd(known - known.mean(0), full_matrices=False)[2][0]
        line = np.quantile((known - known.mean(0)) @ direction, 0.65)
        return np.asarray((x.reshape(len(x), -1) - known.mean(0)) @ direction < line)

    def _recipe(self, training: Training, source: Path) -> dict[str, Any]:
        setting = self.setting
        recipe: dict[str, Any] = {
            "data": {"source": str(source), "partition": "by-class" if setting.members is None else "all"},
            "nets": setting.nets,
            "loss": {"name": setting.loss},
            "optim": {"lr_g": setting.lr, "lr_d": setting.lr, "beta1": 0.5, "beta2": 0.9},
            "train": {**setting.train, "budget": f"{training.steps or setting.steps}steps"},
            "run": {"seed": training.seed, "sample_every": 0, "checkpoint_every": 0, "record_every": 20},
            "engine": {"name": "fused", "threads": 1, "device": "cpu"},
            "herd": {"seeds": training.seeds} | ({} if setting.members is None else {"members": setting.members}),
        }
        for section, values in copy.deepcopy(dict(training.changes)).items():
            recipe[section] = {**recipe.get(section, {}), **values}
        return recipe

    def _source(self, rows: str) -> Path:
        """Return the file of the rows that a training sees; written once, because other processes read it."""
        path = self.folder / f"{rows.replace(' ', '-')}.npz"
        if not path.exists():
            self._select(rows).save(path)
        return path

    def _select(self, rows: str) -> Rows:
        if rows == "few":
            return self._few_rows()
        if rows == "without modes":
            return self._without_modes()
        if rows in CHANGES:
            change = CHANGES[rows]
            return replace(self.rows, x=change(self.rows.x), x_test=change(self.rows.x_test))
        return self.rows

    def _few_rows(self) -> Rows:
        """Return data with few training rows, which a herd learns by heart; the others are held out."""
        classes = [np.flatnonzero(self.rows.y == k) for k in np.unique(self.rows.y)]  # one, if there are no labels
        learned = np.concatenate([rows[: self.setting.few] for rows in classes])
        rest = np.setdiff1d(np.arange(len(self.rows.x)), learned)
        x = np.concatenate([self.rows.x_test, self.rows.x[rest]])
        y = np.concatenate([self.rows.y_test, self.rows.y[rest]])
        return Rows(self.rows.x[learned], self.rows.y[learned], x, y)

    def _without_modes(self) -> Rows:
        trained, held_out = (
            np.concatenate([rows[self.stays(x[rows], k)] for k, rows in enumerate(self.groups(y))])
            for x, y in ((self.rows.x, self.rows.y), (self.rows.x_test, self.rows.y_test))
        )
        return Rows(self.rows.x[trained], self.rows.y[trained], self.rows.x_test[held_out], self.rows.y_test[held_out])


def _load(path: Path) -> Dataset:
    return dataset.load(DataConfig(source=str(path)))
