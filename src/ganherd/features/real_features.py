"""Compute the features of the real data, which generated samples are compared with, and cache them on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.data.keyed_random import shuffle
from ganherd.features import cache, networks
from ganherd.features.extract import ExtractedFeatures, Moments, best_device, extract, precision
from ganherd.features.material import DrawnSamples
from ganherd.features.networks import Network
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.files import sha256_of
from ganherd.util.meter import Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset

VERSION = 1  # part of the cache's key: raise it if a change of the code changes the features of a network


@dataclass(frozen=True)
class RealFeatures:
    """The features of the real data by one network, computed on first use.

    All replicas and metrics share this object.
    """

    dataset: Dataset
    wanted: str | None = None  # the network's name, path or class; None: the one that is fast on any machine
    limit: int | None = None  # number of real rows for a heavy network on a CPU; None: all
    head: Path | None = None  # a classifier head for inception
    trust_code: bool = False
    progress: Progress | None = None
    label: int | None = None  # only rows of this class; None: all rows
    whole: RealFeatures | None = None  # with `label`: the object for all classes, whose network is used

    @cached_property
    def network(self) -> Network:
        """Return the network, which is loaded or trained on first use."""
        if self.whole is not None:
            return self.whole.network
        wanted = self.wanted or networks.cheap(self.dataset)
        return networks.find(wanted, self.dataset, head=self.head, trust_code=self.trust_code, progress=self.progress)

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the numbers of the rows of the training split that are used, int64 [n].

        These are all rows, or all of one class if `label` names one. With a heavy network on a CPU they are at most `limit`,
        always the same ones.
        """
        rows = np.arange(len(self.dataset.x)) if self.label is None else np.flatnonzero(self.dataset.y == self.label)
        if self.limit is None or self.limit >= len(rows) or not self.network.heavy or torch.cuda.is_available():
            return rows
        return np.sort(rows[shuffle(len(rows), "real rows of a score")[: self.limit]])

    def of_class(self, label: int) -> RealFeatures:
        """Return the features of one class; of all rows for -1.

        Unlike `real_of`, this does not compute the features of the other classes.
        """
        return self if label < 0 else replace(self, label=label, whole=self)

    @cached_property
    def real(self) -> ExtractedFeatures:
        """Return the features of the real rows; they are cached on disk."""
        y = self.dataset.y[self.rows]
        tensors = {name: value.to(best_device()) for name, value in self._cached("features", self._extract).items()}
        no_member = np.full(len(y), -1, np.int64)
        return ExtractedFeatures(tensors["features"], tensors.get("logits"), y, no_member)

    def _extract(self) -> dict[str, Tensor]:
        """Return the features of the real rows, and their logits if there are any."""
        is_all = len(self.rows) == len(self.dataset.x)
        x = self.dataset.x if is_all else self.dataset.x[self.rows]  # without a copy if all rows are used
        features, logits = extract(self.network, x, self.progress, f"real samples of {self.dataset.name}")
        return {"features": features} | ({} if logits is None else {"logits": logits})

    def _cached(self, kind: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors from the cache, or compute and cache them. Without a digest of the network, nothing is cached.

        Args:
            kind: The folder of the cache.
        """
        if not self.network.digest:
            return compute()
        path = cache.path_of(kind, self._key)
        if cached := cache.read(path, self._key):
            return cached[0]
        tensors, network = compute(), self.network
        facts = {"data": self.dataset.name, "network": network.name, "resizing": network.resizing}
        on_cpu = {name: value.cpu() for name, value in tensors.items()}
        cache.write(path, self._key, on_cpu, {**facts, "samples": len(self.rows)})
        return tensors

    @cached_property
    def summary(self) -> tuple[Moments, Tensor | None]:
        """Return mean and covariance of the real features, and how often the network predicts each class, int64 [K].

        The second is None if the network predicts no classes.
        """

        def compute() -> dict[str, Tensor]:
            moments, logits = self.real.moments, self.real.logits
            tensors = {"mean": moments.mean, "cov": moments.cov}
            if logits is not None:
                tensors["seen"] = torch.bincount(logits.argmax(1), minlength=logits.shape[1])
            return tensors

        tensors = self._cached("moments", compute)
        counts = tensors["seen"].cpu() if "seen" in tensors else None
        return Moments(tensors["mean"].to(best_device()), tensors["cov"].to(best_device())), counts

    def forget(self) -> None:
        """Drop the features of the real rows from memory; `summary` stays."""
        self.__dict__.pop("real", None)

    @cached_property
    def _key(self) -> str:
        """Return the key of the cache: everything that the real features depend on."""
        parts = (
            self.dataset.digest,
            "train",
            len(self.rows),
            self.network.digest,
            self.network.resizing,
            self.head and sha256_of(self.head),
            precision(best_device()),
            VERSION,
        )
        return "|".join(str(part) for part in parts) + ("" if self.label is None else f"|class {self.label}")

    def real_of(self, classes: tuple[int, ...]) -> ExtractedFeatures:
        """Return the real features of the given classes; of all the data if `classes` is empty."""
        if not classes:
            return self.real
        if classes not in self._by_class:
            self._by_class[classes] = self.real.rows(np.isin(self.real.y, classes))
        return self._by_class[classes]

    @cached_property
    def _by_class(self) -> dict[tuple[int, ...], ExtractedFeatures]:
        """Return the results of `real_of` so far, by their classes."""
        return {}  # `real_of` fills it

    def of(self, drawn: DrawnSamples, what: str = "samples") -> ExtractedFeatures:
        """Return the features of generated samples, by the same network.

        Args:
            what: The samples in words, for progress and errors.

        Raises:
            UserError: Features are not finite; the message names the member.
        """

        def name_row(row: int) -> str:
            return f"a sample of member {drawn.member[row]}" if drawn.member[row] >= 0 else f"{what}, number {row}"

        features, logits = extract(self.network, drawn.x, self.progress, what, name_row)
        return ExtractedFeatures(features, logits, drawn.y, drawn.member)

    def described(self, features: ExtractedFeatures) -> ScoreEntry:
        """Return the fields of scores.json about how samples with these features were compared with the real data."""
        facts: ScoreEntry = {
            "samples": len(features),
            "network": self.network.name,
            "resizing": self.network.resizing,
            "precision": precision(features.x.device),
            "dimension": features.dimension,
            "real": f"{self.dataset.name}, training part" if len(self.dataset.x_test) else self.dataset.name,
            "real_samples": len(self.rows),
        }
        if (accuracy := self.network.held_out_accuracy) is not None:
            facts["held_out_accuracy"] = accuracy
        return facts
