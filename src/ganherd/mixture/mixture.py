"""A mixture: trained generators, a weight for each, and the label that each one generates.

As a distribution it is p(x) = Σ w_k p_k(x), for generators k of weight w_k. A sample is made in two steps: draw a
generator (and a label, if generators take one as an input), then pass noise to this generator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.data.units import Units, projected
from ganherd.herd import rng
from ganherd.herd.state import takes_label
from ganherd.mixture import mixture_files
from ganherd.mixture.generators import Generators, breeds_of, check_declared, tensors_of, with_weights
from ganherd.mixture.member_sampler import MemberSampler
from ganherd.mixture.mixture_files import BestMember, Neighbourhoods
from ganherd.mixture.mixture_noise import draw_indices, draw_routes
from ganherd.mixture.samples import Samples
from ganherd.recipe import trust
from ganherd.recipe.net_config import BreedConfig
from ganherd.runs.folder import RunFolder, code_of, mixture_of
from ganherd.util.errors import UserError, counted, few, whole_number
from ganherd.util.registry import GENERATORS
from ganherd.util.text import reads_as_number
from ganherd.util.user_code import importable_from
from ganherd.viz import pictures

# Fields of `Mixture` that mixture.json has under the same name: unchanged, tuples as lists, and arrays as lists of
# numbers.
_PLAIN = ("latent", "seeds", "step", "winner", "neighbourhoods", "is_part")
_TUPLES = ("labels", "shape", "prior", "offset", "scale", "columns", "plane")
_ARRAYS = {"label_of": np.int64, "weights": np.float64, "label_weights": np.float64}


@dataclass(repr=False)
class Mixture:
    """Generators with weights and labels; most users only need `sample`.

    Members are numbered within a replica. Replicas are independent copies of the herd that were trained with other
    seeds in the same run. Samples are images, points, or rows of a table.
    """

    labels: tuple[str, ...]  # the names of all labels, by number
    shape: tuple[int, ...]  # the shape of one sample
    offset: Units  # a sample in the units of the data is x * scale + offset; for rows, one number for each column
    scale: Units
    latent: int  # the length of the noise of a sample
    prior: str | tuple[str, ...]  # the distribution of the noise: one for all members, or one for each
    label_of: np.ndarray  # int64 [members], the label that each member generates; -1: no single label
    weights: np.ndarray  # float64 [members], sums to 1; [replicas, members] if replicas differ
    label_weights: np.ndarray  # float64 [classes], p(y), for generators that take the label as an input
    seeds: list[int]  # the seed of each replica
    step: int  # the training step of the generators
    breeds: tuple[Generators, ...]  # the generators by architecture, in the order of their members
    winner: BestMember | None = None  # the best member, if `ganherd score --metrics gam2` has determined it
    neighbourhoods: Neighbourhoods | None = None  # the mixtures of a grid's cells; `weights` are those of the best
    stream_version: int = rng.VERSIONS[-1]  # the version of the random streams from which samples are drawn
    columns: tuple[str, ...] = ()  # names of the columns, if samples are rows
    plane: tuple[tuple[float, ...], ...] = ()  # [2, d] directions in which pictures show rows, see `units.main_plane`
    is_part: bool = False  # whether members of weight 0 are left out even if only they have the label that is asked for

    def __repr__(self) -> str:
        labels = f", labels {few(self.labels, 10)}" if self.labels else ""
        seeds = f", {counted(self.replicas, 'seeds')}" if self.replicas > 1 else ""
        return f"<Mixture of {counted(self.members, 'generators')}{seeds}, step {self.step:,}{labels}>"

    def _repr_png_(self) -> bytes:
        """Return a picture of a few samples for a notebook, as the content of a PNG file."""
        return pictures.png(self.sample(64 if self.is_image else 1000).grid())

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return len(self.seeds)

    @property
    def members(self) -> int:
        """Return the number of members in one replica."""
        return len(self.label_of)

    @property
    def is_image(self) -> bool:
        """Return whether samples are images; otherwise they are points or rows."""
        return len(self.shape) == 3

    @property
    def kind(self) -> str:
        """Return what samples are, as a word: `images`, `points` or `rows`."""
        return "images" if self.is_image else "rows" if self.plane else "points"

    @property
    def device(self) -> torch.device:
        """Return the device of the generators."""
        return self.breeds[0].device

    def to(self, device: torch.device | str) -> Mixture:
        """Return a mixture with its generators on a device: this one if they are there already, otherwise a copy."""
        device = _known_device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        return replace(self, breeds=tuple(breed.to(device) for breed in self.breeds))

    def alone(self, member: int) -> Mixture:
        """Return a mixture that samples from one member only."""
        member = whole_number("member", member)
        if not 0 <= member < self.members:
            raise UserError(f"there is no member {member}; this mixture has {self.members}, counted from 0.")
        return replace(self, weights=np.eye(self.members)[member], is_part=True)

    def only_replica(self, replica: int) -> Mixture:
        """Return the mixture of one replica, as if it had been trained alone."""
        replica = whole_number("replica", replica)
        if not 0 <= replica < self.replicas:
            raise UserError(f"there is no replica {replica}; this mixture has {self.replicas}, counted from 0.")
        has_winner = self.winner is not None and self.winner.replica == replica
        return replace(
            self,
            weights=self.weights_of(replica),
            seeds=[self.seeds[replica]],
            breeds=tuple(breed.of_replica(replica) for breed in self.breeds),
            winner=self.winner.model_copy(update={"replica": 0}) if self.winner and has_winner else None,
            neighbourhoods=self.neighbourhoods.only_replica(replica) if self.neighbourhoods else None,
        )

    def portable(self) -> Mixture:
        """Return a copy that draws samples from the random streams of exported models.

        In these streams, sample i of a seed is the first sample of seed + i.
        """
        return replace(self, stream_version=rng.PORTABLE)

    def neighbourhood(self, cell: int) -> Mixture:
        """Return the mixture of the generators of one cell of the grid and its neighbours, in every replica."""
        if self.neighbourhoods is None:
            raise UserError("this mixture has no neighbourhoods: it was not trained with strategy.name cellular.")
        cell = whole_number("cell", cell)
        if not 0 <= cell < self.neighbourhoods.cells:
            raise UserError(f"there is no cell {cell}; this grid has {self.neighbourhoods.cells}, counted from 0.")
        weights = np.zeros((self.replicas, self.members))
        for replica in range(self.replicas):
            neighbourhood = self.neighbourhoods.of(replica, cell)
            weights[replica, neighbourhood.members] = neighbourhood.weights
        return replace(self, weights=weights if self.replicas > 1 else weights[0], is_part=True)

    def weights_of(self, replica: int = 0) -> np.ndarray:
        """Return the weights of a replica's members, float64 [members]."""
        return self.weights if self.weights.ndim == 1 else np.asarray(self.weights[replica])

    def generator(self, member: int, replica: int = 0) -> tuple[Generators, dict[str, Tensor]]:
        """Return the breed that a member belongs to, and the member's parameters and buffers by name."""
        first = 0
        for breed in self.breeds:
            if member < first + breed.members:
                break
            first += breed.members
        return breed, breed.of(replica * breed.members + member - first)

    def module(self, label: str | int | None = None, *, member: int | None = None, replica: int = 0) -> nn.Module:
        """Return a generator as a plain module with its own weights, in evaluation mode.

        It maps noise z [B, latent] to samples x in the units of the nets; `x * self.scale + self.offset` is in the units of the
        data.

        Args:
            label: The label that it generates, by name or number; None: any. Of several members, the one with the
                largest weight is returned. A generator that takes the label as an input must be called with it:
                `module(z, y)`.
            member: The number of the member, instead of a label.
            replica: The number of the replica.

        Raises:
            UserError: There is no such label, member or replica.
        """
        replica = whole_number("replica", replica)
        if member is not None:
            member = whole_number("member", member)
            if label is not None:
                raise UserError("give a label or a member, not both: a member is named by its number alone.")
        else:
            member = int(np.argmax(self.member_weights(self.label_number(label), replica)))
        if not (0 <= member < self.members and 0 <= replica < self.replicas):
            raise UserError(
                f"there is no member {member} of replica {replica}; this mixture has {self.members} and {self.replicas}, counted "
                "from 0."
            )
        breed, state = self.generator(member, replica)
        return with_weights(breed.module, state)

    def prior_of(self, member: int) -> str:
        """Return the distribution of a member's noise, normal or uniform."""
        return self.prior if isinstance(self.prior, str) else self.prior[member]

    def sample(
        self,
        n: int,
        label: str | int | None = None,
        seed: int = 0,
        replica: int = 0,
        *,
        member: int | None = None,
        device: torch.device | str | None = None,
        watch: Callable[[int], None] | None = None,
        truncation: float = 1.0,
    ) -> Samples:
        """Generate n samples.

        Sample i of a seed does not depend on n, bit for bit on the same device. On another device it comes from the
        same noise and differs by rounding.

        Args:
            n: The number of samples.
            label: Sample this label only, by name or number; None: all labels.
            seed: The seed of the samples.
            replica: The replica that generates them.
            member: Sample this member only, by its number; None: all members.
            device: The device to generate on; None: that of the generators.
            watch: Called with the number of samples generated so far.
            truncation: Factor by which the noise is scaled; below 1 samples are more typical and less varied.

        Raises:
            UserError: There is no such label, member or replica, or a generator returns numbers that are not finite.
        """
        n, seed, replica = whole_number("n", n), whole_number("seed", seed), whole_number("replica", replica)
        if isinstance(truncation, bool) or not isinstance(truncation, int | float):
            raise UserError(f"truncation must be a number, not {truncation!r}.")
        if watch is not None and not callable(watch):
            raise UserError(f"watch must be a function of the number of samples so far, not {watch!r}.")
        if device is not None:
            return self.to(device).sample(n, label, seed, replica, member=member, watch=watch, truncation=truncation)
        if member is not None:
            alone = self.alone(member)
            if label is not None and (only := self.label_of[member]) >= 0:
                raise UserError(f"member {member} generates {self.labels[only]!r} only: leave the label out.")
            return alone.sample(n, label, seed, replica, watch=watch, truncation=truncation)
        members, y = self.routes(n, label, seed, replica)
        x = np.empty((n, *self.shape), np.uint8 if self.is_image else np.float32)
        done = 0
        for generator, drawn in np.unique(np.stack([members, y]), axis=1).T.tolist():
            rows = np.flatnonzero((members == generator) & (y == drawn))
            for images in self.images(generator, drawn, rows, seed, replica, truncation):
                x[rows[: len(images)]], rows = images, rows[len(images) :]
                done += len(images)
                if watch:
                    watch(done)
        return self.as_samples(x, y, members)

    def as_samples(self, x: np.ndarray, y: np.ndarray, member: np.ndarray) -> Samples:
        """Return generated values as a `Samples` object with this mixture's names of labels and columns.

        Args:
            x: The values [n, …] in the units of the data.
            y: int64 [n], the label of each sample; -1: none.
            member: int64 [n], the member that generated each sample.

        Raises:
            UserError: `y` or `member` is not an array of n whole numbers, or `y` names a label that the mixture lacks.
        """
        y, member = _whole_numbers("y", y, len(x)), _whole_numbers("member", member, len(x))
        if len(y) and not -1 <= y.min() <= y.max() < len(self.labels):
            wrong = y.min() if y.min() < -1 else y.max()
            raise UserError(
                f"the mixture has no label {wrong}; it has {counted(len(self.labels), 'labels')}, from 0 on."
            )
        points = projected(x, self, self.plane) if self.plane else None
        return Samples(x, y, member, self.labels, self.columns, points)

    def label_number(self, label: str | int | None) -> int | None:
        """Return the number of a label that is given by its name or number; None for None.

        A number that is the name of a label means that label. If all names are numbers, no other number means any.

        Raises:
            UserError: There is no such label.
        """
        if label is None:
            return None
        try:
            number: int | None = int(label) if isinstance(label, str) else operator.index(label)
        except (TypeError, ValueError):
            number = None
        for name in (label,) if number is None else (label, str(number)):
            if name in self.labels:
                return self.labels.index(name)
        if number is None or not 0 <= number < len(self.labels) or all(map(reads_as_number, self.labels)):
            known = ", ".join(self.labels) or "no labels"
            raise UserError(f"the mixture has no label {label!r}; it has {known}.")
        return number

    def member_weights(self, label: int | None = None, replica: int = 0) -> np.ndarray:
        """Return the probability that a sample comes from each member, float64 [members].

        Args:
            label: The number of a label: then the sample is known to have this label.
            replica: The number of the replica.

        Raises:
            UserError: No member generates this label.
        """
        weights = self.weights_of(replica)
        if label is not None and not self.takes_label:
            least = 0.0 if self.is_part else 1e-300  # a label of weight 0 can be asked for
            weights = np.where(self.label_of == label, np.maximum(weights, least), 0.0)
            if not weights.any():
                raise UserError(
                    f"no member of the mixture generates the label {self.labels[label]!r} alone: sample without --label."
                )
        return np.asarray(weights / weights.sum())

    @property
    def takes_label(self) -> bool:
        """Return whether generators take a label as an input, instead of generating one label each."""
        return takes_label(self.breeds[0].module) and bool((self.label_of < 0).any())

    def routes(
        self, n: int, label: str | int | None = None, seed: int = 0, replica: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the member and the label of each of n samples; those of sample i depend on the seed and i only.

        Args:
            n: The number of samples.
            label: Sample this label only, by name or number; None: all labels.
            seed: The seed of the samples.
            replica: The number of the replica.

        Returns:
            The members, int64 [n], and the labels, int64 [n], -1 for samples without a label.
        """
        if n < 1:
            raise UserError(f"cannot generate {n} samples; ask for at least 1.")
        if not 0 <= replica < self.replicas:
            raise UserError(f"there is no replica {replica}; this mixture has {self.replicas}, counted from 0.")
        if self.stream_version == rng.PORTABLE and seed + n > 2**63:
            raise UserError(f"the seed {seed} is too large for portable samples: choose one below 2**63.")
        label = self.label_number(label)
        u = draw_routes(n, seed, self.stream_version)
        member = draw_indices(self.member_weights(label, replica), u[:, 0])
        if not self.takes_label:
            return member, self.label_of[member]
        y = np.full(n, label, np.int64) if label is not None else draw_indices(self.label_weights, u[:, 1])
        return member, y

    def images(
        self, member: int, label: int, rows: np.ndarray, seed: int = 0, replica: int = 0, truncation: float = 1.0
    ) -> Iterator[np.ndarray]:
        """Yield samples of one member for one label, batch by batch, as arrays [B, …] in the units of the data.

        Args:
            member: The number of the member.
            label: The number of the label; -1: none.
            rows: int64 [n], the number of each sample among all samples of this seed. With portable streams its noise
                depends on this number, otherwise on its position in `rows`.
            seed: The seed of the samples.
            replica: The number of the replica.
            truncation: Factor by which the noise is scaled.
        """
        return MemberSampler(self, member, label, replica).images(rows, seed, truncation)

    def walk(
        self,
        frames: int,
        seeds: tuple[int, int],
        label: str | int | None = None,
        replica: int = 0,
        truncation: float = 1.0,
    ) -> Samples:
        """Return samples of one member for noise that moves from the first noise of one seed to the first of another.

        Args:
            frames: The number of samples, both ends included.
            seeds: The seeds of the two ends. The first one determines the member and the label.
            label: Sample this label only, by name or number; None: the label that the first seed draws.
            replica: The replica that generates them.
            truncation: Factor by which the noise is scaled.
        """
        frames = whole_number("frames", frames, 1)
        if isinstance(seeds, str) or not isinstance(seeds, Sequence) or len(seeds) != 2:
            raise UserError(f"seeds must be two numbers, such as (0, 1), not {seeds!r}.")
        seeds = whole_number("seeds", seeds[0], 0), whole_number("seeds", seeds[1], 0)
        member, y = (int(first[0]) for first in self.routes(1, label, seeds[0], replica))
        x = MemberSampler(self, member, y, replica).walk(frames, seeds, truncation)
        return self.as_samples(x, np.full(frames, y), np.full(frames, member))

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the mixture to a folder, as mixture.json and generators.safetensors."""
        each = [BreedConfig(generator=breed.net, members=breed.members) for breed in self.breeds]
        values: dict[str, Any] = {name: getattr(self, name) for name in (*_PLAIN, *_TUPLES, *_ARRAYS)}
        values["plane"] = [list(direction) for direction in self.plane]
        values |= {name: values[name].tolist() for name in _ARRAYS}
        values |= {name: list(values[name]) if isinstance(values[name], tuple) else values[name] for name in _TUPLES}
        values |= {"generator": each[0].generator, "breeds": each if each[1:] else [], "streams": self.stream_version}
        mixture_files.write(folder, mixture_files.MixtureFacts(**values), tensors_of(self.breeds))


def _whole_numbers(name: str, values: Any, n: int) -> np.ndarray:
    """Return an argument with a number for each of n samples as int64 [n]; raise a `UserError` if it is anything else."""
    numbers = np.asarray(values)
    if numbers.shape != (n,) or (n and numbers.dtype.kind not in "iu"):
        raise UserError(
            f"{name} must be {n} whole numbers, one for each sample, not {numbers.dtype} of shape {numbers.shape}: pass "
            f"integers, for example {name}.astype(int)."
        )
    return numbers.astype(np.int64, copy=False)


def _known_device(device: Any) -> torch.device:
    """Return a device by its name; raise a `UserError` if there is none of that name."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise UserError(f"device must be cpu, cuda or one GPU, such as cuda:1, not {device!r}.") from None


def load(path: str | Path, trust_code: bool = False) -> Mixture:
    """Load the mixture of a run. Nothing in the folder is executed, unless `trust_code` is set.

    Args:
        path: The run folder, or its folder `mixture`.
        trust_code: Build nets that are not ganherd's; this runs their code.

    Raises:
        UserError: There is no mixture, or its files are damaged.

    >>> load("runs/no-such-run")
    Traceback (most recent call last):
    ganherd.util.errors.UserError: there is no run folder runs/no-such-run; `ganherd runs` lists all runs.
    """
    folder = mixture_of(path)
    facts = mixture_files.read_facts(folder)
    tensors = mixture_files.read_tensors(folder, facts.sha256, partial(check_declared, facts, folder=folder))
    if trust_code:
        vouch_for(folder.parent, facts)
    with importable_from(code_of(folder.parent) if trust_code else ()):
        breeds = breeds_of(facts, tensors, folder, trust_code)
    values: dict[str, Any] = {name: getattr(facts, name) for name in (*_PLAIN, *_TUPLES, *_ARRAYS)}
    values |= {name: np.array(values[name], dtype) for name, dtype in _ARRAYS.items()}
    values |= {name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in _TUPLES}
    values["plane"] = tuple(tuple(direction) for direction in facts.plane)
    return Mixture(**values, breeds=breeds, stream_version=facts.streams)


def vouch_for(run: Path, facts: mixture_files.MixtureFacts) -> None:
    """Permit the import of the plug-ins that a mixture names, and of those that the recipe of its run folder names."""
    for net in (facts.generator, *(breed.generator for breed in facts.breeds)):
        GENERATORS.vouch(net.name)
    if (folder := RunFolder(run)).recipe_path.is_file() and folder.info_path.is_file():
        trust.vouch(folder.recipe)
