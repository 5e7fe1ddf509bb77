"""Start members, of one class each, from a finished conditional GAN: extract nets for single classes from its nets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.features.extract import tf32
from ganherd.herd import rng
from ganherd.herd.state import Blueprint, State, buffers_of
from ganherd.nets import class_extraction
from ganherd.nets.class_extraction import Named
from ganherd.util.errors import UserError
from ganherd.util.memory import is_out_of_memory

if TYPE_CHECKING:
    from ganherd.training.variants.finetune import OriginRun

_IMAGES = 1024  # number of samples, over all classes, from which the statistics of the generator's layers are estimated
_LEAST = 16  # … of which each class has at least this many


class ByClass:
    """The nets of one conditional GAN, as one unconditional generator and discriminator for each class."""

    def __init__(self, source: OriginRun, member: State, replica: int, device: torch.device) -> None:
        """Extract the generators of all classes.

        Args:
            source: The finished run.
            member: The state [1, …] of its conditional GAN.
            replica: The number of the replica that it belongs to, whose seed decides the noise.
            device: The device that estimates the statistics of the generator's layers, if it has enough memory.
        """
        facts, own = source.facts, source.recipe.nets
        shape, classes = tuple(facts.shape), len(facts.labels)
        g: Any = nets.build_generator(own.generator, shape, own.latent, classes)
        d: Any = nets.build_discriminator(own.discriminator, shape, classes)
        _load(g, member, "g", "g.ema" if "g.ema" in member else "g.params")
        _load(d, member, "d", "d.params")
        labels = _labels(facts.label_weights)
        noise = rng.Streams(np.array([facts.seeds[replica]]), 0)
        z = noise.prior((rng.CALIBRATE,), (len(labels), own.latent), own.prior_of(0), next(g.parameters()).dtype)[0]
        self._path, self._labels, self._d, self._updates = source.path, facts.labels, d, member["g.adam.t"]
        try:
            self._generators = _generators(g, z, labels, device)
        except (RuntimeError, MemoryError) as error:  # one pass over all samples may not fit next to a herd
            if device.type == "cpu" or not is_out_of_memory(error):
                raise
            self._generators = _generators(g, z, labels, torch.device("cpu"))

    def state(self, name: str, g: Blueprint, d: Blueprint) -> State:
        """Return the nets of a class as the state [1, …] of a member.

        The weights of the generator are the running average, if the run has one.

        Args:
            name: The label of the class.
            g: The parameter layout of the member's generator.
            d: The parameter layout of the member's discriminator.
        """
        if name not in self._labels:
            raise UserError(
                f"herd.start_from: {self._path} knows of no class {name!r}, so no member of it can start from there."
            )
        label = self._labels.index(name)
        trained = {"g": (g, self._generators[label]), "d": (d, class_extraction.discriminator(self._d, label))}
        out: State = {"g.adam.t": self._updates}
        for kind, (blueprint, named) in trained.items():
            out[f"{kind}.params"] = blueprint.join_rows({key: named[key][None] for key in blueprint.shapes}, [0])
            out |= {f"{kind}.buffers.{key}": named[key][None] for key in blueprint.buffers}
        return out


def _generators(g: Any, z: Tensor, labels: Tensor, device: torch.device) -> list[Named]:
    """Return the parameters and buffers of the generator of each class, computed on a device and returned on the CPU."""
    with tf32(False):
        extracted = class_extraction.generators(g.to(device), z.to(device), labels.to(device))
        return [{name: value.cpu() for name, value in named.items()} for named in extracted]


def _load(module: nn.Module, member: State, kind: str, rows: str) -> None:
    """Load a member's net into a module. `kind`: "g" or "d"; `rows`: the name of the parameters in the state."""
    named = Blueprint(module).views(member[rows])
    module.to(member[rows].dtype)
    module.load_state_dict({name: value[0] for name, value in {**named, **buffers_of(member, kind)}.items()})


def _labels(weights: Sequence[float]) -> Tensor:
    """Return about `_IMAGES` labels [B] with these class weights as frequencies, at least `_LEAST` of each class."""
    share = np.asarray(weights) / sum(weights)
    counts = np.maximum(_LEAST, np.round(share * _IMAGES)).astype(np.int64)
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
