"""Measure the evidence about a mixture and each of its members, from the samples that the scores draw anyway."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.data.keyed_random import shuffle
from ganherd.data.units import comparable
from ganherd.features.extract import extract
from ganherd.features.material import DrawnSamples, ScoringContext
from ganherd.features.real_features import RealFeatures
from ganherd.metrics.statistics.redraws import rounding
from ganherd.scoring.verdicts.evidence import FEWEST_HELD_OUT, MOST, MOST_TRAINING, Evidence, RealRows, compare
from ganherd.util.errors import NotFinite
from ganherd.util.text import member_labels

EACH = 128  # samples of each member
MOST_DRAWN = 4096  # samples of all members that are drawn for them alone
MOST_HELD_OUT = 1000
MOST_NEIGHBOURS = 4000  # real rows of all classes among which the nearest one is searched


@dataclass(frozen=True)
class Part:
    """A member of the herd, or a class of a herd whose generators take the label, with its evidence.

    Classes whose samples are not finite are one part, because no sample of a single class is known then.
    """

    name: str
    evidence: Evidence
    member: int | None = None
    weight: float | None = None
    # other members are trained on the same data, so that the mixture may cover what it misses
    shares_data: bool = False


class EvidenceCollector:
    """Compare the samples of mixtures with one data set; what is known of the data is computed once."""

    def __init__(self, reference: RealFeatures) -> None:
        """Take the features of the network that is cheap everywhere: the limits were tuned on it."""
        self.reference, self.data = reference, reference.dataset
        self._real: dict[int, RealRows] = {}

    def herd(self, material: ScoringContext) -> Evidence:
        """Return the evidence about the whole mixture."""
        try:
            drawn = material.drawn
        except NotFinite:
            return self._not_finite()
        return self._evidence(drawn, -1)

    def parts(self, material: ScoringContext) -> Iterator[Part]:
        """Yield the evidence about each member, then about each class if generators take the label."""
        labels, label_of = self.data.labels, np.asarray(material.mixture.label_of)
        weights = material.weights
        if len(label_of) > 1 or label_of[0] >= 0:
            each = zip(label_of.tolist(), member_labels(labels, label_of.tolist()), strict=True)
            for member, (label, named) in enumerate(each):
                name = f"member {member}" + (f" ({named})" if named else "")
                evidence = self._member(material, member, label)
                yield Part(name, evidence, member, float(weights[member]), (label_of == label).sum() > 1)
        if getattr(material.mixture, "takes_label", False):
            try:
                drawn = material.by_label
            except NotFinite:
                yield Part("classes", self._not_finite())
                return
            for k, label in enumerate(labels):
                rows = np.flatnonzero(drawn.y == k)
                own = DrawnSamples(drawn.x[rows], drawn.y[rows], drawn.member[rows])
                yield Part(f"class {label}", self._evidence(own, k))

    def _member(self, material: ScoringContext, member: int, label: int) -> Evidence:
        """Return the evidence about a member, which is compared with its class, or with all data if it has none."""
        try:
            drawn = _samples_of(material, member)
        except NotFinite:
            return self._not_finite()
        return self._evidence(drawn, label)

    def _not_finite(self) -> Evidence:
        """Return the evidence about a generator that returns NaN or infinity."""
        return Evidence(samples=0, real=len(self.data.x), finite=False)

    def _evidence(self, drawn: DrawnSamples, label: int) -> Evidence:
        """Return the evidence about samples against a class of the data; -1: against all of it."""
        rows = _some(np.arange(len(drawn.x)), MOST, "samples of a verdict")
        own = DrawnSamples(drawn.x[rows], drawn.y[rows], drawn.member[rows])
        if not len(rows):
            return Evidence(samples=0, real=len(self._rows(label).x))
        network = self.reference.network
        features, logits = extract(network, own.x)
        evidence = compare(features, comparable(own.x, self.data), self._rows(label), key=label + 1)
        if label < 0:
            return evidence
        right, held_out = network.held_out_classes[label] if network.held_out_classes else (0, 0)
        if logits is None or held_out < FEWEST_HELD_OUT:
            seen, real = self._nearest_classes(features, label)
        else:
            seen, real = float((logits.argmax(1).cpu().numpy() == label).mean()), right / held_out
        return dataclasses.replace(evidence, recognised=seen, recognised_real=real)

    def _nearest_classes(self, features: Tensor, label: int) -> tuple[float | None, float | None]:
        """Return how many samples [n, d] of a class are nearest to a real row of it, and how many of its real rows are.

        This is for data without a classifier, and for classes that it was hardly tested on. None for very small classes.
        """
        real = self.reference.real
        rows = _some(np.arange(len(real.y)), MOST_NEIGHBOURS, "neighbours of a verdict")
        own = np.flatnonzero(real.y[rows] == label)
        if len(own) < FEWEST_HELD_OUT:
            return None, None
        data = real.rows(rows).x.double().cpu()
        distances = torch.cdist(data[own], data)
        # a row is not its own neighbour, nor is an equal one, which tables often have: a new sample has none
        distances[distances.square() <= rounding(data, distances)] = torch.inf
        each = (torch.cdist(features.double().cpu(), data), distances)
        seen, of_real = (float((real.y[rows][one.argmin(1).numpy()] == label).mean()) for one in each)
        return seen, of_real

    def _rows(self, label: int) -> RealRows:
        """Return the real rows of a class; -1: all."""
        if label not in self._real:
            real, data = self.reference.real, self.data
            rows = np.arange(len(real.y)) if label < 0 else np.flatnonzero(real.y == label)
            rows = _some(rows, MOST_TRAINING, "training rows of a verdict")
            held = np.arange(len(data.x_test)) if label < 0 else np.flatnonzero(data.y_test == label)
            held = _some(held, MOST_HELD_OUT, "held-out rows of a verdict")
            features = real.rows(rows).x
            own, held_out = (comparable(x, data) for x in (data.x[self.reference.rows[rows]], data.x_test[held]))
            self._real[label] = RealRows(features, own, held_out)
        return self._real[label]


def _some(rows: np.ndarray, most: int, purpose: str) -> np.ndarray:
    """Return at most this many of the rows, chosen at random but always the same for a purpose."""
    return rows if len(rows) <= most else np.sort(rows[shuffle(len(rows), purpose)[:most]])


def _samples_of(material: ScoringContext, member: int) -> DrawnSamples:
    """Return samples of one member: those that were drawn of the mixture, or more if these are few."""
    members = len(material.mixture.label_of)
    each = min(EACH, MOST_DRAWN // members)
    try:
        drawn = material.drawn
        rows = np.flatnonzero(drawn.member == member)
        if len(rows) >= each:
            return DrawnSamples(drawn.x[rows], drawn.y[rows], drawn.member[rows])
    except NotFinite:
        pass  # another member generates NaN
    if not each:
        return DrawnSamples(material.dataset.x[:0], np.zeros(0, np.int64), np.zeros(0, np.int64))
    alone = dataclasses.replace(material.mixture, weights=np.eye(members)[member])
    return dataclasses.replace(material, mixture=alone, samples=each, progress=None).drawn
