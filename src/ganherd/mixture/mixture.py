"""A mixture: trained generators, a weight for each, and the label that each one generates.

p(x) = Σ p(x | y_k) p(y_k): sampling draws a label, then passes noise to a generator of that label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.features.material import DrawnSamples
from ganherd.herd import rng
from ganherd.herd.evaluation import member_module
from ganherd.herd.parameter_names import call_with_tensors
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import takes_label
from ganherd.mixture import mixture_files
from ganherd.mixture.generators import Generators, breeds_of, check_declared, tensors_of
from ganherd.mixture.mixture_files import BestMember, Neighbourhoods
from ganherd.recipe.net_config import BreedConfig
from ganherd.runs.folder import code_of, mixture_of
from ganherd.util.errors import NotFinite, UserError
from ganherd.util.user_code import importable_from

_BLOCK = 64  # images that share a random key, on every device, so that image i is the same for every n
_CALL = {"cpu": 64, "cuda": 1024}  # images per call of a generator; always full, so that results are bit-exact
NOISES = 10_240  # for the re-estimation of batch-norm statistics
NOISES_AT_ONCE = 512
# Fields of a mixture that mixture.json has under the same name: as they are, as lists, and as lists of numbers.
_PLAIN = ("offset", "scale", "latent", "seeds", "step", "winner", "neighbourhoods")
_TUPLES = ("labels", "shape", "prior")
_ARRAYS = {"label_of": np.int64, "weights": np.float64, "label_weights": np.float64}


@dataclass(frozen=True)
class Samples(DrawnSamples):
    """Generated samples with their labels, the members that generated them, and the names of all labels."""

    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Mixture:
    """Generators with weights and labels. Most users only need `sample`."""

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    offset: float
    scale: float
    latent: int
    prior: str | tuple[str, ...]  # one for all members, or one for each
    label_of: np.ndarray  # int64 [members], the label of each; -1: no single label
    weights: np.ndarray  # float64 [members], sums to 1; [replicas, members] if replicas differ
    label_weights: np.ndarray  # p(y) [classes], for generators that take the label as an input
    seeds: list[int]  # of each replica
    step: int
    breeds: tuple[Generators, ...]  # in the order of their members
    winner: BestMember | None = None  # the best member, if `ganherd score --metrics gam2` has determined it
    neighbourhoods: Neighbourhoods | None = None  # the mixtures of a grid's cells; `weights` are those of the best
    stream_version: int = rng.VERSIONS[-1]  # of the random streams of samples

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
        """Return whether samples are images; otherwise they are points."""
        return len(self.shape) == 3

    @property
    def device(self) -> torch.device:
        """Return the device of the generators."""
        return self.breeds[0].device

    def to(self, device: torch.device | str) -> Mixture:
        """Return the mixture with its generators on a device; itself if they are there already."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        return replace(self, breeds=tuple(breed.to(device) for breed in self.breeds))

    def alone(self, member: int) -> Mixture:
        """Return a mixture that samples from one member only."""
        if not 0 <= member < self.members:
            raise UserError(f"there is no member {member}; this mixture has {self.members}, counted from 0.")
        return replace(self, weights=np.eye(self.members)[member])

    def neighbourhood(self, cell: int) -> Mixture:
        """Return the mixture of one cell of the grid and its neighbours, in every replica."""
        if self.neighbourhoods is None:
            raise UserError("this mixture has no neighbourhoods: it was not trained with strategy.name cellular.")
        if not 0 <= cell < self.neighbourhoods.cells:
            raise UserError(f"there is no cell {cell}; this grid has {self.neighbourhoods.cells}, counted from 0.")
        weights = np.zeros((self.replicas, self.members))
        for replica in range(self.replicas):
            neighbourhood = self.neighbourhoods.of(replica, cell)
            weights[replica, neighbourhood.members] = neighbourhood.weights
        return replace(self, weights=weights if self.replicas > 1 else weights[0])

    def weights_of(self, replica: int = 0) -> np.ndarray:
        """Return the weights of a replica, float64 [members]."""
        return self.weights if self.weights.ndim == 1 else np.asarray(self.weights[replica])

    def generator(self, member: int, replica: int = 0) -> tuple[Generators, dict[str, Tensor]]:
        """Return the breed of a member, and the member's parameters and buffers."""
        first = 0
        for breed in self.breeds:
            if member < first + breed.members:
                break
            first += breed.members
        return breed, breed.of(replica * breed.members + member - first)

    def prior_of(self, member: int) -> str:
        """Return the noise distribution of a member."""
        return self.prior if isinstance(self.prior, str) else self.prior[member]

    def sample(
        self,
        n: int,
        label: str | int | None = None,
        seed: int = 0,
        replica: int = 0,
        *,
        device: torch.device | str | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> Samples:
        """Return n samples.

        Sample i of a seed is the same for every n, bit for bit on the same device. On another device it comes from the same
        noise and differs by rounding.

        Args:
            n: The number of samples.
            label: Sample this label only, by name or number; None: all labels.
            seed: The seed of the samples.
            replica: The replica that generates them.
            device: The device to generate on; None: that of the generators.
            watch: Called with the number of samples generated so far.

        Raises:
            UserError: There is no such label or replica, or a generator returns numbers that are not finite.
        """
        if device is not None:
            return self.to(device).sample(n, label, seed, replica, watch=watch)
        member, y = self.routes(n, label, seed, replica)
        x = np.empty((n, *self.shape), np.uint8 if self.is_image else np.float32)
        done = 0
        for generator, drawn in np.unique(np.stack([member, y]), axis=1).T.tolist():
            rows = np.flatnonzero((member == generator) & (y == drawn))
            for images in self.images(generator, drawn, len(rows), seed, replica):
                x[rows[: len(images)]], rows = images, rows[len(images) :]
                done += len(images)
                if watch:
                    watch(done)
        return Samples(x, y, member, self.labels)

    def label_number(self, label: str | int | None) -> int | None:
        """Return the number of a label that is given by name, or by number if no label has that name; None for None."""
        if label is None:
            return None
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        try:
            number = int(label)
        except ValueError:
            number = -1
        if not 0 <= number < len(self.labels):
            known = ", ".join(self.labels) or "no labels"
            raise UserError(f"the mixture has no label {label!r}; it has {known}.")
        return number

    def member_weights(self, label: int | None = None, replica: int = 0) -> np.ndarray:
        """Return the probability of each member [members], given a label if there is one."""
        weights = self.weights_of(replica)
        if label is not None and not self.takes_label:
            weights = np.where(self.label_of == label, np.maximum(weights, 1e-300), 0.0)
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
        """Return the member [n] and the label [n] (-1: none) of each sample; those of sample i depend on (seed, i) only."""
        if n < 1:
            raise UserError(f"cannot generate {n} samples; ask for at least 1.")
        if not 0 <= replica < self.replicas:
            raise UserError(f"there is no replica {replica}; this mixture has {self.replicas}, counted from 0.")
        label = self.label_number(label)
        blocks = -(-n // _BLOCK)
        keys = rng.keys(np.full(blocks, rng.key(seed, rng.ROUTE)), np.arange(blocks))
        with rng.using(self.stream_version):
            u = rng.draw(keys, (_BLOCK, 2), "uniform", torch.float64).reshape(-1, 2)[:n].numpy()
        member = _inverse(self.member_weights(label, replica), u[:, 0])
        if not self.takes_label:
            return member, self.label_of[member]
        y = np.full(n, label, np.int64) if label is not None else _inverse(self.label_weights, u[:, 1])
        return member, y

    def images(self, member: int, label: int, count: int, seed: int = 0, replica: int = 0) -> Iterator[np.ndarray]:
        """Yield the first `count` samples of a member for a label (-1: none) and a seed, batch by batch."""
        batch = _CALL.get(self.device.type, _BLOCK)
        blocks = batch // _BLOCK
        base = rng.key(seed, rng.SAMPLE, replica, member, label + 1)
        calls = [np.arange(first, first + blocks) for first in range(0, -(-count // _BLOCK), blocks)]
        noise = self._noise(member, base, calls[0])
        for number, next_call in enumerate([*calls[1:], None]):
            x, finite = self._call(member, label, replica, *noise)
            if next_call is not None:
                noise = self._noise(member, base, next_call)  # while a GPU generates the current batch
            if not finite:
                raise NotFinite(
                    f"member {member} of the mixture generates numbers that are not finite: train it again."
                )
            yield x.cpu().numpy()[: count - number * batch]

    def _noise(self, member: int, base: int, blocks: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Return noise [blocks × 64, Z], and the key for random numbers inside the generator."""
        keys = rng.keys(np.full(len(blocks), base), blocks)
        with rng.using(self.stream_version):
            z = _prior(keys, (_BLOCK, self.latent), self.prior_of(member), self.generator(member)[0].dtype)
        return z.reshape(-1, self.latent), keys[:1]

    def _call(self, member: int, label: int, replica: int, z: Tensor, key: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return samples on the device, and whether all are finite. On a GPU this only queues the work."""
        breed, state = self.generator(member, replica)
        device = self.device
        with torch.no_grad(), _repeatable(device), rng.using(self.stream_version):
            labels = (torch.full((len(z),), label, device=device),) if takes_label(breed.module) else ()
            inputs = (z.to(device), *labels)
            x = breed.evaluated(state, inputs, torch.from_numpy(rng.keys(key, rng.INSIDE))[0].to(device))
            x = x.float() * self.scale + self.offset
            return x.round().clamp(0, 255).to(torch.uint8) if self.is_image else x, torch.isfinite(x).all()

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the mixture to a folder."""
        each = [BreedConfig(generator=breed.net, members=breed.members) for breed in self.breeds]
        values: dict[str, Any] = {name: getattr(self, name) for name in (*_PLAIN, *_TUPLES, *_ARRAYS)}
        values |= {name: values[name].tolist() for name in _ARRAYS}
        values |= {name: values[name] if isinstance(values[name], str) else list(values[name]) for name in _TUPLES}
        values |= {"generator": each[0].generator, "breeds": each if each[1:] else [], "streams": self.stream_version}
        mixture_files.write(folder, mixture_files.MixtureFacts(**values), tensors_of(self.breeds))


def load(path: str | Path, trust_code: bool = False) -> Mixture:
    """Load the mixture of a run folder, or of its `mixture` folder. Nothing in the folder is executed.

    Args:
        path: The folder.
        trust_code: Build nets that are not ganherd's; this runs their code.

    Raises:
        UserError: There is no mixture, or its files are damaged.

    >>> load("runs/no-such-run")
    Traceback (most recent call last):
    ganherd.util.errors.UserError: there is no run folder runs/no-such-run; `ganherd runs` lists those that there are.
    """
    folder = mixture_of(path)
    facts = mixture_files.read_facts(folder)
    tensors = mixture_files.read_tensors(folder, facts.sha256, partial(check_declared, facts, folder=folder))
    with importable_from(code_of(folder.parent) if trust_code else ()):
        breeds = breeds_of(facts, tensors, folder, trust_code)
    values: dict[str, Any] = {name: getattr(facts, name) for name in (*_PLAIN, *_TUPLES, *_ARRAYS)}
    values |= {name: np.array(values[name], dtype) for name, dtype in _ARRAYS.items()}
    values |= {name: values[name] if isinstance(values[name], str) else tuple(values[name]) for name in _TUPLES}
    return Mixture(**values, breeds=breeds, stream_version=facts.streams)


def recalibrate_batch_norm(
    module: nn.Module,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    latent: int,
    prior: str,
    labels: Sequence[int],
    key: int,
    device: torch.device | str = "cpu",
    noises: int | None = None,
) -> dict[str, Tensor]:
    """Return the buffers of a generator with batch-norm statistics re-estimated from noise, for its final parameters.

    During training the statistics followed parameters that moved. Only batch norm is in training mode here, so dropout is off.

    Args:
        module: The net, in training mode.
        params: The exported parameters.
        buffers: The buffers after training.
        latent: The length of the noise.
        prior: The distribution of the noise.
        labels: The labels that the generator is called with in turn, if it takes one.
        key: The random key of the noise.
        device: The device to compute on.
        noises: Number of noises; fewer than the default, `NOISES`, are for measuring the time that it takes.
    """
    in_training = {name for name, layer in module.named_modules() if layer.training}
    module = member_module(module, {name: value.to(device) for name, value in (params | buffers).items()})
    norms = _reset_norms(module, in_training)
    if not norms:
        return buffers
    dtype = next(iter(params.values())).dtype
    statistics: dict[str, Tensor] = {}
    for name, norm in norms.items():
        statistics |= {f"{name}.{buffer}".lstrip("."): value for buffer, value in norm.named_buffers()}
    others = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    turns = torch.tensor(list(labels) or [0])[torch.arange(NOISES_AT_ONCE) % max(len(labels), 1)]
    with torch.no_grad():
        for block in range((noises or NOISES) // NOISES_AT_ONCE):
            base = np.array([rng.key(key, rng.CALIBRATE, block)])
            label = (turns.to(device),) if takes_label(module) else ()
            state = {name: value.clone() for name, value in others.items()} | statistics
            inputs = (_prior(base, (NOISES_AT_ONCE, latent), prior, dtype)[0].to(device), *label)
            with MemberRandomness(torch.from_numpy(rng.keys(base, rng.INSIDE)).to(device)[0]):
                call_with_tensors(module, state, inputs)
            statistics = {name: state[name] for name in statistics}  # All other buffers stay as training left them.
    # A norm that evaluation mode folds into another layer is never called, and keeps its buffers.
    used = {name for name in norms if statistics[f"{name}.num_batches_tracked".lstrip(".")] > 0}
    updated = {name: value for name, value in statistics.items() if name.rpartition(".")[0] in used}
    return buffers | {name: value.detach().cpu() for name, value in updated.items()}


def _reset_norms(module: nn.Module, names: set[str]) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Reset the running statistics of batch norms, put these norms in training mode, and return them by name.

    Args:
        names: The layers to consider; of these, batch norms that have no running statistics are left out.
    """
    norms = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats and name in names
    }
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # average over all batches
        norm.train()
    return norms


def _prior(key: np.ndarray, shape: tuple[int, int], prior: str, dtype: torch.dtype) -> Tensor:
    """Return noise [keys, *shape]: normal, or uniform in [-1, 1)."""
    kind = "normal" if prior == "normal" else "uniform"
    z = rng.draw(key, shape, kind, dtype)  # [keys, *shape]
    return z if kind == "normal" else z * 2.0 - 1.0


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """Make a GPU deterministic and use full float32 precision, so that samples equal those of a CPU up to rounding."""
    if device.type != "cuda":
        yield
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = False, True, False, False
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before


def _inverse(weights: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Draw indices by inverting the cumulative distribution of the weights at u in [0, 1)."""
    edges = np.cumsum(weights / weights.sum())
    indices = np.searchsorted(edges, u, side="right")
    # Rounding must never select an index of weight 0.
    return np.minimum(indices, int(np.flatnonzero(weights)[-1])).astype(np.int64)
