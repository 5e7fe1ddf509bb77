"""Convert a mixture to a portable model: layers of nets, weights of members, and how to draw samples from seeds.

A mixture is the trained result: generators (members) with a weight and a label each. A portable model draws every
sample from its own seed, with the random streams of version 3 (`herd/rng.py`): the same seed and label give the same
sample in PyTorch, ONNX Runtime and a web page. `ganherd sample --portable` draws the same samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ganherd.export import loader
from ganherd.export.traced_net import trace
from ganherd.mixture.mixture import Mixture
from ganherd.util.errors import UserError
from ganherd.util.version import __version__

_BITS = 1 << 24  # draws that choose a member or a label are whole numbers below this
CHECKED = 64  # number of exported samples that are compared with those of ganherd


@dataclass(frozen=True)
class PortableModel:
    """A mixture in the form that all exports share: `facts` (JSON) and `tensors` of `loader.Model`."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def parameters(self) -> int:
        """Return the number of exported parameters and buffers."""
        return sum(value.numel() for value in self.tensors.values())

    def loaded(self) -> loader.Model:
        """Return the model as the exported loader would load it."""
        return loader.Model(self.facts, self.tensors)


def portable_model(mixture: Mixture, replica: int = 0, member: int | None = None, title: str = "") -> PortableModel:
    """Convert one replica of a mixture to a portable model. Members with weight 0 for every label are left out.

    Args:
        replica: The number of the replica (copy of the herd with another seed).
        member: Convert only this member; None: the whole mixture.
        title: The name of the model for people.

    Raises:
        UserError: There is no such replica or member, or a net has a layer that exports do not know.
    """
    if not 0 <= replica < mixture.replicas:
        raise UserError(f"there is no replica {replica}; this mixture has {mixture.replicas}, counted from 0.")
    if member is None:
        rows = _label_rows(mixture, replica)  # [labels + 1, all members]
    else:
        rows = np.tile(mixture.alone(member).weights, (len(mixture.labels) + 1, 1))
    used = np.flatnonzero(rows.any(0)).tolist()
    nets, tensors, places = [], dict[str, Tensor](), []
    first = 0
    for number, breed in enumerate(mixture.breeds):
        own = [each for each in used if first <= each < first + breed.members]
        if own:
            traced = trace(breed, mixture.latent, mixture.shape)
            chosen = torch.tensor([replica * breed.members + each - first for each in own])
            names = {name: f"{number}.{name}" for name in traced.tensors}
            nets.append([
                [name, layer, [names.get(value, value) for value in inputs], settings]
                for name, layer, inputs, settings in traced.layers
            ])  # fmt: skip
            for name, value in traced.tensors.items():
                tensors[names[name]] = value if len(value) == 1 else value[chosen]
            places += [[len(nets) - 1, row] for row in range(len(own))]
        first += breed.members
    facts = {
        "format": "ganherd export 1",
        "version": __version__,
        "title": title,
        "labels": list(mixture.labels),
        "shape": list(mixture.shape),
        "image": mixture.is_image,
        "scale": mixture.scale,
        "offset": mixture.offset,
        "columns": list(mixture.columns),
        "latent": mixture.latent,
        "takes_label": mixture.takes_label,
        "member_thresholds": [_thresholds(row[used]) for row in rows],  # first without a label, then of each label
        "label_thresholds": _thresholds(mixture.label_weights) if mixture.takes_label else [],
        "label_of": mixture.label_of[used].tolist(),
        "uniform": [mixture.prior_of(each) == "uniform" for each in used],
        "members": places,  # of each member: the index of its net, and its row in the tensors
        "numbers": used,  # of each member: its number in the run
        "nets": nets,
    }
    return PortableModel(facts, tensors)


def samplable_labels(facts: dict[str, Any]) -> list[int]:
    """Return the numbers of the labels for which the model can draw samples."""
    every = range(len(facts["labels"]))
    return [y for y in every if facts["takes_label"] or y in facts["label_of"]]


def check_against(mixture: Mixture, replica: int, images: np.ndarray, seeds: range) -> float:
    """Return the largest absolute difference between exported samples and those of `ganherd sample --portable`.

    Args:
        images: Samples [n, …] that the export drew for `seeds` without requesting a label.
        seeds: The seeds, n consecutive numbers.

    Raises:
        UserError: Images differ by more than one grey level, or points or columns by more than a thousandth of their
            standard deviation.
    """
    expected = mixture.portable().sample(len(seeds), seed=seeds.start, replica=replica).x
    difference = np.abs(images.astype(np.float64) - expected)
    largest = float(difference.max())
    spread = expected.std(0) if mixture.kind == "rows" else expected.std()
    if (difference > (1.0 if mixture.is_image else 1e-3 * spread + 1e-6 * np.abs(expected))).any():
        raise UserError(
            f"this mixture cannot be exported: exported samples differ from those of ganherd by up to {largest:.3g}."
        )
    return largest


def _label_rows(mixture: Mixture, replica: int) -> np.ndarray:
    """Return the weights of all members, [labels + 1, members]: first if no label is requested, then for each label.

    A label that no member generates has the same weights as no label.
    """
    rows = [mixture.member_weights(None, replica)]
    for label in range(len(mixture.labels)):
        known = mixture.takes_label or bool((mixture.label_of == label).any())
        rows.append(mixture.member_weights(label, replica) if known else rows[0])
    return np.array(rows)


def _thresholds(weights: np.ndarray) -> list[int]:
    """Return thresholds that turn a uniform 24-bit number into a choice by weights.

    The chosen item is the number of thresholds that the number reaches.
    The last item with a weight, and those after it, have the threshold 2^24, which is never reached.

    >>> _thresholds(np.array([1.0, 1.0, 0.0]))
    [8388608, 16777216, 16777216]
    """
    limits = np.ceil(np.cumsum(weights / weights.sum()) * _BITS).astype(np.int64)
    limits[np.flatnonzero(weights)[-1] :] = _BITS
    return limits.tolist()  # type: ignore[no-any-return]
