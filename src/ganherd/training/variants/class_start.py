"""What members of one class each take from a finished run of one conditional GAN: that class's own nets out of its nets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.herd import rng
from ganherd.herd.state import Blueprint, State, buffers_of
from ganherd.nets import class_extraction
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.training.variants.finetune import OriginRun

_IMAGES = 1024  # from which the statistics of the classes are taken
_LEAST = 16  # of a class


class ByClass:
    """One conditional GAN, taken apart by class."""

    def __init__(self, source: OriginRun, part: State) -> None:
        """`part`: the run's state of that one member, [1, …]."""
        facts, own = source.facts, source.recipe.nets
        shape, classes = tuple(facts.shape), len(facts.labels)
        g: Any = nets.build_generator(own.generator, shape, own.latent, classes)
        d: Any = nets.build_discriminator(own.discriminator, shape, classes)
        _load(g, part, "g", "g.ema" if "g.ema" in part else "g.params")
        _load(d, part, "d", "d.params")
        labels = _labels(facts.label_weights)
        noise = rng.Streams(np.array([facts.seeds[0]]), 0)
        z = noise.prior((rng.CALIBRATE,), (len(labels), own.latent), own.prior_of(0), next(g.parameters()).dtype)[0]
        self._path, self._labels, self._d, self._updates = source.path, facts.labels, d, part["g.adam.t"]
        self._generators = list(class_extraction.generators(g, z, labels))

    def state(self, name: str, g: Blueprint, d: Blueprint) -> State:
        """The nets of that class, as the rows of a member with those blueprints; the average is where it starts from."""
        if name not in self._labels:
            raise UserError(
                f"herd.start_from: {self._path} knows of no class {name!r}, so no member of it can start from there."
            )
        label = self._labels.index(name)
        made = {"g": (g, self._generators[label]), "d": (d, class_extraction.discriminator(self._d, label))}
        out: State = {"g.adam.t": self._updates}
        for kind, (blueprint, named) in made.items():
            out[f"{kind}.params"] = blueprint.join_rows({key: named[key][None] for key in blueprint.shapes}, [0])
            out |= {f"{kind}.buffers.{key}": named[key][None] for key in blueprint.buffers}
        return out


def _load(module: nn.Module, part: State, kind: str, rows: str) -> None:
    named = Blueprint(module).views(part[rows])
    module.to(part[rows].dtype)
    module.load_state_dict({name: value[0] for name, value in {**named, **buffers_of(part, kind)}.items()})


def _labels(weights: Sequence[float]) -> Tensor:
    """Of a batch that has every class about as often as the data, and often enough for its statistics."""
    share = np.asarray(weights) / sum(weights)
    counts = np.maximum(_LEAST, np.round(share * _IMAGES)).astype(np.int64)
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
