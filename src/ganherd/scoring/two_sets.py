"""Score one set of samples against another: runs, folders of images, .npz files or known data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.data.arrays import float_range
from ganherd.data.keyed_random import shuffle
from ganherd.features.material import DrawnSamples
from ganherd.runs.score_entry import Scores
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset

MOST = 50_000  # rows of a larger set that are used by default
DRAWN = 10_000  # samples of a run that is used as the data


@dataclass(frozen=True)
class GivenSet:
    """Samples from a file that can be scored like a mixture: it has the attributes and methods that scores use of one.

    It has no generators: `sample` returns rows of the set, and a label can be requested only if rows have labels.
    """

    name: str
    x: np.ndarray
    y: np.ndarray  # int64 [n], index into labels; -1: no label
    labels: tuple[str, ...]
    only_samples: bool = True  # there are no generators
    takes_label: bool = False
    replicas: int = 1
    seeds: tuple[int, ...] = (0,)
    step: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample."""
        return tuple(int(n) for n in self.x.shape[1:])

    @cached_property
    def label_of(self) -> np.ndarray:
        """Return the classes that occur, int64 [classes], like a mixture with one member for each; [-1] if rows have no labels."""
        present = np.unique(self.y[self.y >= 0])
        return present if len(present) else np.full(1, -1, np.int64)

    @cached_property
    def weights(self) -> np.ndarray:
        """Return the share of each class in the rows with a label, float64 [classes]."""
        counts = np.array([(self.y == k).sum() for k in self.label_of], np.float64)
        result: np.ndarray = counts / counts.sum()
        return result

    def sample(
        self, n: int, label: int | None = None, seed: int = 0, replica: int = 0, watch: Any = None
    ) -> DrawnSamples:
        """Return n rows of the set, or all if there are fewer; no row occurs twice."""
        rows = np.arange(len(self.x)) if label is None else np.flatnonzero(self.y == label)
        if n < len(rows):
            rows = rows[np.sort(shuffle(len(rows), "rows of a set", seed)[:n])]
        return DrawnSamples(self.x[rows], self.y[rows], np.full(len(rows), -1, np.int64))


def score_sets(
    real: str,
    fake: str,
    metrics: Sequence[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
    *,
    network: str | None = None,
    head: str | Path | None = None,
    per: str | None = None,
) -> Scores:
    """Return the scores of `fake` against `real`; each a run, a folder, an .npz or known data (`cifar10`, `cifar10:test`)."""
    from ganherd.scoring import known_metrics, score_seeds
    from ganherd.scoring.one_run import default_samples, reference_for

    known_metrics(metrics, "score")  # reports a misspelt name before anything is loaded
    source = _mixture(fake, trust_code)
    data = _dataset(real, samples or DRAWN, seed, trust_code)
    names = known_metrics(metrics, "score", data)
    if source is None:
        given = _rows(fake)
        if given.x.shape[1:] != data.x.shape[1:]:
            raise UserError(
                f"{real} has {_times(data.x.shape[1:])} and {fake} has {_times(given.x.shape[1:])}: "
                "bring them to the same shape (colours × height × width) first."
            )
        _refuse_other_range(data, given, real, fake)
        if progress:
            for name, own in ((real, data), (fake, given)):
                for note in own.notes:  # e.g. the range that its values are read with
                    progress(f"{name}: {note}")
        source = _as_labelled(given, data, progress)
        n = min(samples or MOST, len(given.x))
        if samples and n < samples and progress:
            progress(f"{fake} holds {n:,} samples, not {samples:,}: all of them are used")
    else:
        n = samples or default_samples(data, network)
        if source.labels and tuple(source.labels) != tuple(data.labels):  # its labels are not those of the data
            source = GivenSet(fake, source.sample(n, seed=seed).x, np.full(n, -1, np.int64), ())
    reference = reference_for(data, network, n, head, trust_code, progress)
    return score_seeds(source, data, names, n, seed, progress, reference=reference, per=per)


def _mixture(source: str, trust_code: bool) -> Any:
    """Return the mixture of a run folder; None if `source` is no run."""
    if not (Path(source) / "run.json").is_file() and not (Path(source) / "mixture.json").is_file():
        return None
    from ganherd.mixture import mixture

    return mixture.load(source, trust_code)


def _dataset(source: str, samples: int, seed: int, trust_code: bool) -> Dataset:
    """Return the real data: a training split, the split that is named, or samples of a run."""
    mixture = _mixture(source, trust_code)
    if mixture is None:
        return _rows(source)
    from ganherd.data.dataset import Dataset

    # Another seed than that of the fakes, so that a run can be compared with itself
    drawn = mixture.sample(samples, seed=seed + 1)
    labels = mixture.labels if (drawn.y >= 0).all() else ()
    return Dataset(source, drawn.x, drawn.y, drawn.x[:0], drawn.y[:0], labels, mixture.offset, mixture.scale)


def _rows(source: str) -> Dataset:
    """Load known data, a folder or an .npz, as a data set whose `x` holds the rows to score.

    NAME:test takes the held-out split, and NAME the training split, which is everything if the source has no split.
    """
    from ganherd.data.dataset import load
    from ganherd.recipe.schema import DataConfig
    from ganherd.util.registry import DATA_SOURCES

    name, _, split = source.rpartition(":")
    if split not in ("train", "test") or not name:
        name, split = source, "train"
    DATA_SOURCES.vouch(name)
    own = load(DataConfig(source=name, holdout=0.0))
    if split == "train":
        return own
    if len(own.x_test) == 0:
        raise UserError(f"{name} has no held-out split: leave :test out to take all of it.")
    return replace(own, x=own.x_test, y=own.y_test, x_test=own.x[:0], y_test=own.y[:0])


def _refuse_other_range(data: Dataset, given: Dataset, real: str, fake: str) -> None:
    """Refuse two files of float images that would be read with different values of black and white.

    The range is chosen by the values of each file, and a wrong choice would look like a difference between the images.
    """
    if data.source_range is None or given.source_range is None:
        return
    one, other = float_range(*data.source_range), float_range(*given.source_range)
    if one is None or other is None or one == other:
        return
    has = [f"[{low:.4g}, {high:.4g}]" for low, high in (data.source_range, given.source_range)]
    raise UserError(
        f"{real} has float values in {has[0]}, which are read as {one[0]} … {one[1]}, and {fake} has values in {has[1]}, which "
        f"are read as {other[0]} … {other[1]}: save both as uint8 in 0 … 255, or both as float in the same range."
    )


def _as_labelled(given: Dataset, data: Dataset, progress: Progress | None) -> Any:
    """Return a given set with its labels renumbered as in the data, by their names.

    It has no labels if one of their names is none of the data's, which is reported.
    """
    unknown = [name for name in given.labels if name not in data.labels]
    if not given.labels or not data.labels or unknown:
        if unknown and data.labels and progress:
            progress(f"the labels of {given.name} are not those of {data.name} ({unknown[0]!r}): they are left aside")
        return GivenSet(given.name, given.x, np.full(len(given.x), -1, np.int64), ())
    number = np.array([*(data.labels.index(name) for name in given.labels), -1])  # the last is for -1: no label
    return GivenSet(given.name, given.x, number[given.y], data.labels)


def _times(shape: tuple[int, ...]) -> str:
    """Return a shape as text, e.g. 3 × 32 × 32."""
    return " × ".join(str(n) for n in shape)
