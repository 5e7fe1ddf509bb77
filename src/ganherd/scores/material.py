"""What metrics look at, made once and only if asked for: samples of a mixture, the real data, the classifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.errors import UserError

if TYPE_CHECKING:
    from ganherd.data.source import Dataset
    from ganherd.mixture import Mixture
    from ganherd.scores.classifier import Classifier
    from ganherd.scores.features import Features
    from ganherd.scores.reference import Reference

Progress = Callable[[str], None]


class LeftOut(Exception):
    """A metric cannot be measured here, for this reason; the others can."""


@dataclass(frozen=True)
class Drawn:
    """Samples in the data's own units with the label each was asked for (-1: none) and the member it came from."""

    x: np.ndarray  # uint8 [n, C, H, W] or float32 [n, 2]
    y: np.ndarray  # int64 [n]
    member: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class Material:
    mixture: Mixture
    dataset: Dataset
    samples: int
    seed: int = 0
    replica: int = 0
    progress: Progress | None = None
    against: Reference | None = None  # the real features; None: those of the network that is cheap everywhere
    per: str | None = None  # "class" or "member": scores of each besides

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"a score needs at least one sample, not {self.samples}")
        if tuple(self.mixture.shape) != tuple(self.dataset.shape):
            raise UserError(
                f"the mixture makes samples of shape {tuple(self.mixture.shape)} and the data {self.dataset.name} "
                f"has {tuple(self.dataset.shape)}: score it against the data that it was trained on"
            )
        if self.has_labels and tuple(self.mixture.labels) != tuple(self.dataset.labels):
            raise UserError(
                f"the labels of the mixture are not those of the data {self.dataset.name}: "
                "score it against the data that it was trained on"
            )

    @cached_property
    def has_labels(self) -> bool:
        """Whether a label can be asked for: members stand for classes of the data, or take the label as an input."""
        return bool(self.mixture.labels) and (self._takes_label or bool((np.asarray(self.mixture.label_of) >= 0).any()))

    @cached_property
    def _takes_label(self) -> bool:
        return bool(getattr(self.mixture, "takes_label", False))

    @cached_property
    def asked(self) -> Drawn:
        """Samples with every label asked for equally often (the first labels once more, where it does not divide)."""
        if not self.has_generators:
            return self.free  # the set is what it is
        label_of = np.asarray(self.mixture.label_of)
        asked = np.arange(len(self.mixture.labels)) if self._takes_label else np.unique(label_of[label_of >= 0])
        share, rest = divmod(self.samples, len(asked))
        self.tell(f"drawing {self.samples:,} samples, {len(asked)} labels equally")
        counts = {int(k): share + (i < rest) for i, k in enumerate(asked)}
        parts = [self._draw(n, k) for k, n in counts.items() if n > 0]
        return Drawn(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("x", "y", "member")))

    @cached_property
    def free(self) -> Drawn:
        """Samples as the mixture draws them by itself."""
        self.tell(f"drawing {self.samples:,} samples")
        return self._draw(self.samples, None)

    @cached_property
    def classifier(self) -> Classifier:
        from ganherd.scores.classifier import classifier_for  # torch only when a metric needs it

        return classifier_for(self.dataset, progress=self.progress)

    @cached_property
    def reference(self) -> Reference:
        """The real data as the network of the feature scores sees it."""
        from ganherd.scores.reference import Reference

        return self.against or Reference(self.dataset, progress=self.progress)

    @cached_property
    def features(self) -> Features:
        """What the network says of the free samples: one pass for the mixture and for every class."""
        return self.reference.of(self.free)

    @cached_property
    def member_features(self) -> Features:
        """What it says of samples that come from all members equally: one pass for all of them."""
        weights = np.asarray(self.mixture.weights, np.float64)
        if np.ptp(weights) < 1e-12:
            return self.features
        equal = dataclasses.replace(self.mixture, weights=np.full(len(weights), 1 / len(weights)))
        return self.reference.of(dataclasses.replace(self, mixture=equal).free)

    @property
    def has_generators(self) -> bool:
        """Whether there is a mixture to draw from, and not a set of samples that stands in for one."""
        return not getattr(self.mixture, "only_samples", False)

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What one metric computes and another one needs too."""
        return {}

    @cached_property
    def class_weights(self) -> tuple[np.ndarray, str]:
        """p(y), float64 [classes], and whose it is: the mixture's where members stand for classes, or the data's."""
        if self._takes_label:
            return np.asarray(self.mixture.label_weights, np.float64), "p(y) of the mixture"
        if self.has_labels:
            label_of = np.asarray(self.mixture.label_of)
            weights = np.asarray(self.mixture.weights, np.float64)
            known = label_of >= 0
            p = np.bincount(label_of[known], weights[known], minlength=len(self.dataset.labels))
            return p / p.sum(), "p(y) of the mixture"
        y = self.dataset.y[self.dataset.y >= 0]
        return np.bincount(y, minlength=len(self.dataset.labels)) / len(y), "label frequencies of the data"

    def tell(self, line: str) -> None:
        if self.progress:
            self.progress(line)

    def _draw(self, n: int, label: int | None) -> Drawn:
        drawn = self.mixture.sample(n, label=label, seed=self.seed, replica=self.replica)
        x, member = np.asarray(drawn.x), np.asarray(drawn.member)
        if np.issubdtype(x.dtype, np.floating):
            bad = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
            if bad.any():
                names = ", ".join(str(m) for m in np.unique(member[bad]))
                raise UserError(
                    f"member {names} of the mixture makes samples that are not numbers (NaN): "
                    "resume the run from an earlier checkpoint, or leave that member out"
                )
        y = np.asarray(drawn.y) if label is None else np.full(len(x), label, np.int64)
        return Drawn(x, y, member)
