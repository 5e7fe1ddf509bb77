"""What samples are measured against: the real data as a network sees it, computed once and kept by content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.data.keyed import shuffle
from ganherd.features import cache, networks
from ganherd.features.extract import ExtractedFeatures, best_device, extract, precision
from ganherd.features.material import DrawnSamples
from ganherd.features.moments import Moments
from ganherd.features.networks import Network
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.files import sha256_of
from ganherd.util.meter import Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset

VERSION = 1  # part of the cache's key: raise it when features of the same network would change


@dataclass(frozen=True)
class RealFeatures:
    """The real data, the network that looks at it, and its features. Shared by all replicas and metrics."""

    dataset: Dataset
    wanted: str | None = None  # the network's name, path or class; None: the one that is cheap everywhere
    limit: int | None = None  # most real rows for a heavy network on a CPU; None: all
    head: Path | None = None  # a classifier head for inception
    trust_code: bool = False
    progress: Progress | None = None

    @cached_property
    def network(self) -> Network:
        wanted = self.wanted or networks.cheap(self.dataset)
        return networks.find(wanted, self.dataset, head=self.head, trust_code=self.trust_code, progress=self.progress)

    @cached_property
    def rows(self) -> np.ndarray:
        """[n] which rows of the training split are looked at: all, or always the same share of them."""
        n = len(self.dataset.x)
        if self.limit is None or self.limit >= n or not self.network.heavy or torch.cuda.is_available():
            return np.arange(n)
        return np.sort(shuffle(n, "real rows of a score")[: self.limit])

    @cached_property
    def real(self) -> ExtractedFeatures:
        """The features of the real rows, from the cache where they were computed before."""
        y, device = self.dataset.y[self.rows], best_device()
        no_member = np.full(len(y), -1, np.int64)
        path = cache.path_of("features", self._key)
        if self.network.digest and (cached := cache.read(path, self._key)):
            features, logits = cached[0]["features"], cached[0].get("logits")
            return ExtractedFeatures(features.to(device), None if logits is None else logits.to(device), y, no_member)
        is_all = len(self.rows) == len(self.dataset.x)
        x = self.dataset.x if is_all else self.dataset.x[self.rows]  # all rows are not copied
        features, logits = extract(self.network, x, self.progress, f"real samples of {self.dataset.name}")
        if self.network.digest:
            tensors = {"features": features.cpu()} | ({} if logits is None else {"logits": logits.cpu()})
            cache.write(path, self._key, tensors, self._facts)
        return ExtractedFeatures(features, logits, y, no_member)

    @cached_property
    def summary(self) -> tuple[Moments, Tensor | None]:
        """(moments of the real features, on their device; how often the network sees each class in them, int64 [K])."""
        path, device = cache.path_of("moments", self._key), best_device()
        if self.network.digest and (cached := cache.read(path, self._key)):
            mean, cov = cached[0]["mean"].to(device), cached[0]["cov"].to(device)
            return Moments(mean, cov), cached[0].get("seen")
        moments, logits = self.real.moments, self.real.logits
        seen = None if logits is None else torch.bincount(logits.argmax(1), minlength=logits.shape[1]).cpu()
        if self.network.digest:
            tensors = {"mean": moments.mean.cpu(), "cov": moments.cov.cpu()} | ({} if seen is None else {"seen": seen})
            cache.write(path, self._key, tensors, self._facts)
        return moments, seen

    def forget(self) -> None:
        """Drop the features of the real rows; what was computed from them stays."""
        self.__dict__.pop("real", None)

    @cached_property
    def _key(self) -> str:
        """All that the real features depend on."""
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
        return "|".join(str(part) for part in parts)

    @property
    def _facts(self) -> dict[str, object]:
        """The facts that the cache holds about them."""
        network = self.network
        facts = {"data": self.dataset.name, "network": network.name, "resizing": network.resizing}
        return {**facts, "samples": len(self.rows)}

    def real_of(self, classes: tuple[int, ...]) -> ExtractedFeatures:
        """Return the features of some classes; of all the data if none is named."""
        if not classes:
            return self.real
        if classes not in self._by_class:
            self._by_class[classes] = self.real.rows(np.isin(self.real.y, classes))
        return self._by_class[classes]

    @cached_property
    def _by_class(self) -> dict[tuple[int, ...], ExtractedFeatures]:
        return {}

    def of(self, drawn: DrawnSamples, what: str = "samples") -> ExtractedFeatures:
        """Return the features of generated samples; an error about NaN names the member."""

        def name_row(row: int) -> str:
            return f"a sample of member {drawn.member[row]}" if drawn.member[row] >= 0 else f"{what}, number {row}"

        features, logits = extract(self.network, drawn.x, self.progress, what, name_row)
        return ExtractedFeatures(features, logits, drawn.y, drawn.member)

    def described(self, features: ExtractedFeatures) -> ScoreEntry:
        """Return what every score against this reference was measured with."""
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
