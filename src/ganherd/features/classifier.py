"""Train a small classifier of the real data in seconds, for scores that need labels, and cache it for this data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.data.keyed_random import shuffle
from ganherd.data.units import HasUnits, Units, to_model
from ganherd.features import cache
from ganherd.features.one_cycle import OneCycleAdam
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.host import torch_threads
from ganherd.util.meter import Detail, timed

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset

VERSION = 2  # part of the cache's key: raise it when the net or its training changes
BATCH = 64
STEPS = (500, 2000)  # least and largest number of training steps; in between, training lasts two epochs
OWN, FEW = 5, 20  # without a held-out split, 1/OWN of the data is held out, if that is at least FEW rows
LARGEST = 32  # larger images are averaged down to this side


class ImageNet(nn.Sequential):
    """Classify images [B, C, H, W] with three convolutions; return logits [B, classes].

    Images larger than 32 px are averaged down; the first convolution halves images of more than 16 px to reduce the
    cost.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        channels, *sides = shape
        small = [min(side, LARGEST) for side in sides]
        stride = 2 if min(small) > 16 else 1
        features = 64 * math.prod(math.ceil(side / (4 * stride)) for side in small)
        super().__init__(
            nn.AdaptiveAvgPool2d((small[0], small[1])) if small != sides else nn.Identity(),
            *_conv(channels, 16, stride),
            *_conv(16, 32, 2),
            *_conv(32, 64, 2),
            nn.Flatten(),
            nn.Linear(features, classes),
        )


class PointNet(nn.Sequential):
    """Classify points or rows of a table [B, d] with two hidden layers; return logits [B, classes]."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        width = 64
        layers = [nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        super().__init__(*layers, nn.Linear(width, classes))


def _conv(n_in: int, n_out: int, stride: int) -> list[nn.Module]:
    """Return a convolution with batch norm and ReLU."""
    return [nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]


@dataclass(frozen=True)
class Classifier:
    """A trained classifier, with its accuracy on held-out data.

    `offset` and `scale` convert data to the net's units.
    """

    net: nn.Module
    name: str
    offset: Units
    scale: Units
    held_out_accuracy: float | None  # None: there was too little data to hold some out
    held_out_samples: int
    # for each class (number of held-out rows that it recognises, number of held-out rows)
    held_out_classes: tuple[tuple[int, int], ...] = ()
    resizing: str = "none"  # in words, how an image is resized before the net sees it

    @property
    def with_equal_classes(self) -> tuple[float | None, int]:
        """Return the accuracy on held-out data if all classes were equally frequent, and a number of rows.

        That many rows of equally frequent classes would give the same standard error. Classes without held-out rows do
        not count.

        >>> Classifier(nn.Identity(), "", 0.0, 1.0, 0.9, 100, ((90, 90), (0, 10))).with_equal_classes
        (0.5, 36)
        """
        known = [(right, rows) for right, rows in self.held_out_classes if rows]
        if not known:
            return self.held_out_accuracy, self.held_out_samples
        accuracy = sum(right / rows for right, rows in known) / len(known)
        return accuracy, round(len(known) ** 2 / sum(1 / rows for _, rows in known))

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [n, classes], of data [n, …] in its own units (uint8 images, float points)."""
        self.net.eval()
        batches = (x[start : start + 1024] for start in range(0, len(x), 1024))
        with torch.no_grad():
            return np.concatenate([self.net(_model_units(x, self)).numpy() for x in batches])

    def described(self, samples: int) -> ScoreEntry:
        """Return the fields of scores.json about a score that this classifier measured on `samples` samples."""
        facts: ScoreEntry = {"samples": samples, "network": self.name, "resizing": self.resizing}
        return facts | {"held_out_accuracy": self.held_out_accuracy}

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the most likely class of each sample, int64 [n], of data [n, …] in its own units."""
        result: np.ndarray = self.logits(x).argmax(1).astype(np.int64)
        return result


def classifier_for(dataset: Dataset, seed: int = 0, progress: Callable[[str], None] | None = None) -> Classifier:
    """Return the classifier of this data from the cache; if it is not there, train it and write it to the cache.

    Raises:
        UserError: The data has fewer than two classes, or no labels.
    """
    classes = len(dataset.labels)
    if classes < 2:
        raise UserError(f"a classifier needs data of at least two classes, and {dataset.name} has {classes}")
    key = f"{dataset.digest}|{tuple(dataset.shape)}|{classes}|{seed}|{VERSION}"
    trained_on, held_out = _split(dataset)
    if held_out.x is dataset.x:
        key += f"|{OWN}"
    net = _make(dataset.shape, classes, seed)
    path = cache.path_of("classifiers", key)
    facts = _read(path, net, key)
    if facts is None:
        if progress:
            progress(Detail(f"training the classifier on {len(trained_on.index):,} real samples"))
        with torch_threads(1):  # so that scores do not depend on the cores of the machine
            _fit(net, dataset, trained_on.index, seed, progress)
            facts = _accuracy(net, dataset, held_out)
        cache.write(path, key, net.state_dict(), facts)
    kind = "mlp" if isinstance(net, PointNet) else "cnn"
    return Classifier(
        net.eval(),
        f"{dataset.name} {kind} {path.stem[:8]}",
        dataset.offset,
        dataset.scale,
        facts["held_out_accuracy"],
        facts["held_out_samples"],
        tuple((right, rows) for right, rows in facts["held_out_classes"]),
        _resizing(dataset.shape),
    )


def _resizing(shape: tuple[int, ...]) -> str:
    """Return in words how the classifier resizes samples of this shape, [C, H, W] for images; "none" if it does not.

    >>> _resizing((3, 64, 20)), _resizing((1, 28, 28)), _resizing((2,))
    ('averaged down to 32 × 20', 'none', 'none')
    """
    if len(shape) < 3 or max(shape[1:]) <= LARGEST:
        return "none"
    return f"averaged down to {' × '.join(str(min(side, LARGEST)) for side in shape[1:])}"


@dataclass(frozen=True)
class _Rows:
    """The labelled rows `x[index]`, `y[index]` of two arrays.

    `x` may be a file that is read only when it is indexed.
    """

    x: np.ndarray
    y: np.ndarray
    index: np.ndarray  # int64, numbers of the rows


def _split(dataset: Dataset) -> tuple[_Rows, _Rows]:
    """Return training rows and test rows, only those with a label.

    The test rows are the held-out split of the data set. If it has none, they are a fixed fifth of the training split;
    they are empty if that is less than 20 rows.
    """
    own, held = (np.flatnonzero(y >= 0) for y in (dataset.y, dataset.y_test))
    if len(held):
        return _Rows(dataset.x, dataset.y, own), _Rows(dataset.x_test, dataset.y_test, held)
    order = shuffle(len(own), "held out for the classifier")
    some = len(own) // OWN if len(own) // OWN >= FEW else 0
    parts = (own[np.sort(order[some:])], own[np.sort(order[:some])])
    train, tried = (_Rows(dataset.x, dataset.y, part) for part in parts)
    return train, tried if some else _Rows(dataset.x_test, dataset.y_test, held)


def _make(shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return an untrained net for samples of this shape, initialised by the seed. The caller's random state is kept."""
    with torch.random.fork_rng(devices=[]):  # restores the caller's random state
        torch.manual_seed(seed)
        return ImageNet(shape, classes) if len(shape) == 3 else PointNet(shape, classes)


def _fit(
    net: nn.Module, dataset: Dataset, rows: np.ndarray, seed: int, progress: Callable[[str], None] | None = None
) -> None:
    """Train a net, in place, on the rows with these numbers [n] of the training split."""
    if len(rows) == 0:
        raise UserError(f"a classifier needs labels, and no sample of {dataset.name} has one")
    y = torch.from_numpy(np.ascontiguousarray(dataset.y[rows]))
    order = _batches(len(rows), np.random.default_rng(seed))  # [steps, B]
    optimiser = OneCycleAdam(net.parameters(), len(order))
    net.train()
    with torch.enable_grad():
        for batch in timed(list(order), progress, "classifier, steps"):
            x = _model_units(dataset.x[rows[batch]], dataset)  # [B, …]
            optimiser.update(F.cross_entropy(net(x), y[batch]))


def _batches(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return the positions 0 … n − 1 that each step trains on, [steps, B]; every epoch has a new random order."""
    size = min(BATCH, n)
    steps = min(max(2 * n // size, STEPS[0]), STEPS[1])
    epochs = -(-steps * size // n)
    return np.concatenate([rng.permutation(n) for _ in range(epochs)])[: steps * size].reshape(steps, size)


def _accuracy(net: nn.Module, dataset: Dataset, held_out: _Rows) -> JsonObject:
    """Return the accuracy of a net on held-out rows and their number, as the fields of the cached JSON file."""
    rows = held_out.index
    if len(rows) == 0:
        return {"held_out_accuracy": None, "held_out_samples": 0, "held_out_classes": []}
    judge = Classifier(net, "", dataset.offset, dataset.scale, None, 0)
    y = held_out.y[rows]
    right = judge.predict(held_out.x[rows]) == y
    classes = [[int(right[y == k].sum()), int((y == k).sum())] for k in range(len(dataset.labels))]
    return {"held_out_accuracy": float(right.mean()), "held_out_samples": len(rows), "held_out_classes": classes}


def _model_units(x: np.ndarray, units: HasUnits) -> Tensor:
    """Return data in its own units, e.g. uint8 images, as a float32 tensor in the units that the nets take."""
    return to_model(torch.from_numpy(np.array(x, np.float32)), units)


def _read(path: Path, net: nn.Module, key: str) -> JsonObject | None:
    """Load the weights of a net from the cache, and return its accuracy as in `_accuracy`.

    Return None if the entry is missing, damaged, or has another key; the net must then be trained.
    """
    entry = cache.read(path, key)
    try:
        tensors, facts = entry or ({}, {})
        accuracy, samples = facts["held_out_accuracy"], int(facts["held_out_samples"])
        classes = [[int(right), int(rows)] for right, rows in facts["held_out_classes"]]
        net.load_state_dict(tensors)
    except Exception:  # a cache must never be the reason that a score fails
        return None
    known = None if accuracy is None else float(accuracy)
    return {"held_out_accuracy": known, "held_out_samples": samples, "held_out_classes": classes}
