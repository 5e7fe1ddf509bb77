"""Provide what metrics are computed from: samples of a mixture, the real data, and a classifier, made on first use.

A mixture is the trained result: generators (members), a weight for each, and the label that each one stands for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.util.errors import NotFinite, UserError
from ganherd.util.meter import Detail, Progress, TimeLeft

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.classifier import Classifier
    from ganherd.features.extract import ExtractedFeatures
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture

SPACES = {
    "images": "pixels",
    "points": "coordinates",
    "rows": "columns",
}  # what distances between samples are measured in
FROM_DATA = "label frequencies of the data"  # where p(y) comes from, if not from the mixture
EACH = 256  # least number of samples of each member, if members are scored separately and `samples` is not less


class MetricSkipped(Exception):
    """Raised with the reason if a metric cannot be measured for this data or on this machine."""


@dataclass(frozen=True)
class DrawnSamples:
    """Generated samples in the units of the data, with the label and the member of each."""

    x: np.ndarray  # uint8 [n, C, H, W] or float32 [n, d]
    y: np.ndarray  # int64 [n], the label that the sample was generated for; -1: none
    member: np.ndarray  # int64 [n], the member that generated the sample

    @staticmethod
    def joined(parts: Sequence[DrawnSamples]) -> DrawnSamples:
        """Concatenate several sets of samples."""
        return DrawnSamples(*(np.concatenate([getattr(part, f) for part in parts]) for f in ("x", "y", "member")))


@dataclass(frozen=True)
class ScoredNeighbourhood:
    """Members that are scored as one mixture, such as a cell of a grid and its neighbours."""

    members: Sequence[int]
    weights: Sequence[float] | None = None  # of each member in the mixture; None: all are equal


@dataclass(frozen=True)
class Annealing:
    """Settings of annealed importance sampling (AIS), which estimates likelihoods; None: the default."""

    points: int | None = None  # number of held-out images
    variance: float | None = None  # variance of the Gaussian around a generated image, for pixels in [0, 1]
    temperatures: int | None = None  # number of annealing steps
    chains: int | None = None  # number of chains for each image


@dataclass(frozen=True)
class ScoringContext:
    """Provide metrics with samples of a mixture, the real data, and the classifier, each computed on first use."""

    mixture: Mixture
    dataset: Dataset
    samples: int  # number of samples to draw
    seed: int = 0
    replica: int = 0  # the replica (copy of the herd with another seed) that is scored
    progress: Progress | None = None
    against: RealFeatures | None = None  # features of the real data; None: use a network that is fast on any machine
    per: str | None = None  # "class", "member" or "neighbourhood": also score each of these separately
    neighbourhoods: Sequence[ScoredNeighbourhood] | None = None
    annealing: Annealing = Annealing()

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
        """Return whether samples of a given label can be drawn: members have a class each, or the label is an input."""
        return bool(self.mixture.labels) and (self._takes_label or bool((np.asarray(self.mixture.label_of) >= 0).any()))

    @property
    def weights(self) -> np.ndarray:
        """Return the weights of the members in this replica, float64 [members]."""
        weights = np.asarray(self.mixture.weights, np.float64)
        return weights if weights.ndim == 1 else np.asarray(weights[self.replica])

    @cached_property
    def _takes_label(self) -> bool:
        """Return whether generators take the label as an input."""
        return bool(getattr(self.mixture, "takes_label", False))

    @cached_property
    def by_label(self) -> DrawnSamples:
        """Return as many samples as `samples` says, equally many of every label; the first labels get the remainder, one each.

        If this material was made from a given set of samples, not from generators, return those that have a label.
        """
        if not self.has_generators:
            known = self.drawn.y >= 0
            return DrawnSamples(self.drawn.x[known], self.drawn.y[known], self.drawn.member[known])
        label_of = np.asarray(self.mixture.label_of)
        labels = np.arange(len(self.mixture.labels)) if self._takes_label else np.unique(label_of[label_of >= 0])
        share, rest = divmod(self.samples, len(labels))
        self.report(f"drawing {self.samples:,} samples, {len(labels)} labels equally")
        counts = {int(k): share + (i < rest) for i, k in enumerate(labels)}
        return DrawnSamples.joined([self._draw(n, k) for k, n in counts.items() if n > 0])

    @cached_property
    def drawn(self) -> DrawnSamples:
        """Return `samples` samples of the whole mixture, of any label."""
        self.report(f"drawing {self.samples:,} samples")
        return self._draw(self.samples, None)

    @cached_property
    def classifier(self) -> Classifier:
        """Return the small classifier of the real data, which is trained if it is not cached."""
        from ganherd.features.classifier import classifier_for  # imports torch, which only some metrics need

        return classifier_for(self.dataset, progress=self.progress)

    @cached_property
    def reference(self) -> RealFeatures:
        """Return the features of the real data that samples are compared with, and their network."""
        from ganherd.features.real_features import RealFeatures

        return self.against or RealFeatures(self.dataset, progress=self.progress)

    @cached_property
    def features(self) -> ExtractedFeatures:
        """Return the features of the samples in `drawn`."""
        return self.reference.of(self.drawn)

    @cached_property
    def by_member(self) -> DrawnSamples:
        """Return samples of every member, for scores of each member.

        These are the samples in `drawn` if all members have equal weights and each has at least 256 samples in it (or
        `samples`, if that is less). Otherwise the same number of samples is drawn from each member.
        """
        members = len(self.mixture.label_of)
        weights = self.weights
        counts = np.bincount(self.drawn.member, minlength=members) if np.ptp(weights) < 1e-12 else np.zeros(members)
        if counts.min() >= min(EACH, self.samples):
            return self.drawn
        each = max(-(-self.samples // members), min(EACH, self.samples))
        clock = TimeLeft(self.progress, f"drawing {each:,} samples of each member", members)
        self.report(f"drawing {each:,} samples of each of {members:,} members")
        parts = []
        for m in range(members):
            clock.at(m)
            alone = dataclasses.replace(self, mixture=dataclasses.replace(self.mixture, weights=np.eye(members)[m]))
            parts.append(alone._draw(each, None, quiet=True))
        return DrawnSamples.joined(parts)

    @cached_property
    def member_features(self) -> ExtractedFeatures:
        """Return the features of the samples in `by_member`."""
        return self.features if self.by_member is self.drawn else self.reference.of(self.by_member)

    @property
    def has_generators(self) -> bool:
        """Return whether samples can be drawn from generators; False if a fixed set of samples is scored."""
        return not getattr(self.mixture, "only_samples", False)

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Return a dictionary in which metrics share intermediate results."""
        return {}

    def forget_features(self) -> None:
        """Free the memory of features and of `cache`. Samples are kept; features are computed again if needed."""
        for name in ("features", "member_features", "cache"):
            self.__dict__.pop(name, None)

    @cached_property
    def class_weights(self) -> tuple[np.ndarray, str]:
        """Return the probability p(y) of each class, float64 [classes], and where it comes from, in words.

        It is p(y) of the mixture if members generate one class each or take a label, otherwise the label frequencies of
        the data. For a fixed set of samples it is always those of the data: the set's own frequencies would always
        agree with it.
        """
        if self._takes_label:
            return np.asarray(self.mixture.label_weights, np.float64), "p(y) of the mixture"
        if self.has_labels and self.has_generators:
            label_of = np.asarray(self.mixture.label_of)
            weights = self.weights
            known = label_of >= 0
            p = np.bincount(label_of[known], weights[known], minlength=len(self.dataset.labels))
            return p / p.sum(), "p(y) of the mixture"
        y = self.dataset.y[self.dataset.y >= 0]
        return np.bincount(y, minlength=len(self.dataset.labels)) / len(y), FROM_DATA

    def report(self, line: str) -> None:
        """Pass a line to `progress`, if there is one."""
        if self.progress:
            self.progress(Detail(line))

    def _draw(self, n: int, label: int | None, quiet: bool = False) -> DrawnSamples:
        """Draw n samples of the mixture, of any label (None) or of one.

        Raises:
            NotFinite: Members generate NaN; the message names them.
        """
        clock = TimeLeft(None if quiet else self.progress, "drawing samples", n)
        own = self.mixture.labels[label] if label is not None and self.has_generators else label
        drawn = self.mixture.sample(n, label=own, seed=self.seed, replica=self.replica, watch=clock.at)
        if self.has_generators and len(drawn.x) != n:
            raise RuntimeError(f"{n} samples were asked for and {len(drawn.x)} came")
        x, member = np.asarray(drawn.x), np.asarray(drawn.member)
        if np.issubdtype(x.dtype, np.floating):
            bad = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
            if bad.any():
                names = ", ".join(str(m) for m in np.unique(member[bad]))
                raise NotFinite(
                    f"member {names} of the mixture makes samples that are not numbers (NaN): "
                    "resume the run from an earlier checkpoint, or leave that member out"
                )
        y = np.asarray(drawn.y) if label is None else np.full(len(x), label, np.int64)
        return DrawnSamples(x, y, member)
