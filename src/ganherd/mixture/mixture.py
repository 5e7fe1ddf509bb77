"""The trained result: generators, a weight for each, and the label that each one stands for.

p(x) = Σ p(x | y_k) p(y_k): sampling draws a label, then sends noise to the generator that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.herd import rng
from ganherd.herd.evaluation import member_module
from ganherd.herd.parameter_names import call_with_tensors
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import takes_label
from ganherd.mixture import mixture_files
from ganherd.mixture.generators import Generators, breeds_of, check_declared, tensors_of
from ganherd.mixture.mixture_files import Neighbourhoods, NeighbourhoodWinner
from ganherd.recipe.net_config import BreedConfig
from ganherd.runs.folder import code_of, mixture_of
from ganherd.util.errors import UserError
from ganherd.util.user_code import importable_from

_BLOCK = 64  # images that draw their noise together, on every device: so image i is the same for every n
_CALL = {"cpu": 64, "cuda": 1024}  # images per call of a generator, always full: so it is the same to the bit
_NOISES = 10_240  # for the re-estimation of batch-norm statistics


@dataclass(frozen=True)
class Samples:
    """Generated data: x uint8 [n, C, H, W] (float32 [n, 2] for points), y int64 [n] (-1: no label), member int64 [n]."""

    x: np.ndarray
    y: np.ndarray
    member: np.ndarray
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Mixture:
    """Generators with weights and labels; `sample` is all that most people need of it."""

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    offset: float
    scale: float
    latent: int
    prior: str | tuple[str, ...]  # of all members, or of each
    label_of: np.ndarray  # [members] int64, -1: stands for no single class
    weights: np.ndarray  # [members] float64, sums to 1; [replicas, members] where replicas differ
    label_weights: np.ndarray  # [classes] p(y), for generators that take the label as an input
    seeds: list[int]  # of each replica
    step: int
    breeds: tuple[Generators, ...]  # in the order of their members
    winner: NeighbourhoodWinner | None = None  # the best member, where `ganherd score --metrics gam2` has found one
    neighbourhoods: Neighbourhoods | None = None  # the mixtures of a grid's cells: `weights` are those of the best
    stream_version: int = rng.VERSIONS[-1]  # of the streams that samples are drawn from

    @property
    def replicas(self) -> int:
        return len(self.seeds)

    @property
    def members(self) -> int:
        return len(self.label_of)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def device(self) -> torch.device:
        return self.breeds[0].device

    def to(self, device: torch.device | str) -> Mixture:
        """The same mixture with its generators on a device; itself where they are there already."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        return replace(self, breeds=tuple(breed.to(device) for breed in self.breeds))

    def alone(self, member: int) -> Mixture:
        """One member by itself."""
        if not 0 <= member < self.members:
            raise UserError(f"there is no member {member}; this mixture has {self.members}, counted from 0.")
        return replace(self, weights=np.eye(self.members)[member])

    def neighbourhood(self, cell: int) -> Mixture:
        """The mixture of one cell of the grid and its neighbours, in every replica."""
        if self.neighbourhoods is None:
            raise UserError("this mixture has no neighbourhoods: it was not trained with strategy.name cellular.")
        if not 0 <= cell < self.neighbourhoods.cells:
            raise UserError(f"there is no cell {cell}; this grid has {self.neighbourhoods.cells}, counted from 0.")
        weights = np.zeros((self.replicas, self.members))
        for replica in range(self.replicas):
            found = self.neighbourhoods.of(replica, cell)
            weights[replica, found.members] = found.weights
        return replace(self, weights=weights if self.replicas > 1 else weights[0])

    def weights_of(self, replica: int = 0) -> np.ndarray:
        """[members] float64"""
        return self.weights if self.weights.ndim == 1 else np.asarray(self.weights[replica])

    def generator(self, member: int, replica: int = 0) -> tuple[Generators, dict[str, Tensor]]:
        """The breed of a member, and its own parameters and buffers."""
        first = 0
        for breed in self.breeds:
            if member < first + breed.members:
                break
            first += breed.members
        return breed, breed.of(replica * breed.members + member - first)

    def prior_of(self, member: int) -> str:
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
        """n images, of one label or of all. Image i of a seed is the same for every n, to the bit on the same device;
        on another one it is made of the same noise, and differs by rounding. `watch` is told how many are made."""
        if device is not None:
            return self.to(device).sample(n, label, seed, replica, watch=watch)
        member, y = self.routes(n, label, seed, replica)
        x = np.empty((n, *self.shape), np.uint8 if self.is_image else np.float32)
        made = 0
        for pair in np.unique(np.stack([member, y]), axis=1).T.tolist():
            rows = np.flatnonzero((member == pair[0]) & (y == pair[1]))
            for images in self.images(pair[0], pair[1], len(rows), seed, replica):
                x[rows[: len(images)]], rows = images, rows[len(images) :]
                made += len(images)
                if watch:
                    watch(made)
        return Samples(x, y, member, self.labels)

    def label_number(self, label: str | int | None) -> int | None:
        """A label by name, or by number where no label has that name."""
        if label is None:
            return None
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        try:
            number = int(label)
        except ValueError:
            number = -1
        if not 0 <= number < len(self.labels):
            known = ", ".join(self.labels) or "none: its data has no labels"
            raise UserError(f"the mixture has no label {label!r}; it has {known}.")
        return number

    def member_weights(self, label: int | None = None, replica: int = 0) -> np.ndarray:
        """[members] how probable each member is, given the label if there is one."""
        weights = self.weights_of(replica)
        if label is not None and not self.takes_label:
            weights = np.where(self.label_of == label, np.maximum(weights, 1e-300), 0.0)
            if not weights.any():
                raise UserError(
                    f"no member of the mixture stands for the label {self.labels[label]!r} alone: sample without --label."
                )
        return np.asarray(weights / weights.sum())

    @property
    def takes_label(self) -> bool:
        """Whether the generators take any label as an input, rather than standing for one."""
        return takes_label(self.breeds[0].module) and bool((self.label_of < 0).any())

    def routes(
        self, n: int, label: str | int | None = None, seed: int = 0, replica: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """[n] the member and the label (-1: none) of each image; image i's are drawn from (seed, i) alone."""
        if n < 1:
            raise UserError(f"asked for {n} samples; ask for at least 1.")
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
        """The first `count` images that a member makes of a label (-1: of none) for a seed, part by part."""
        size = _CALL.get(self.device.type, _BLOCK)
        base = rng.key(seed, rng.SAMPLE, replica, member, label + 1)
        calls = [np.arange(first, first + size // _BLOCK) for first in range(0, -(-count // _BLOCK), size // _BLOCK)]
        ahead = self._noise(member, base, calls[0])
        for number, more in enumerate([*calls[1:], None]):
            x, finite = self._call(member, label, replica, *ahead)
            if more is not None:
                ahead = self._noise(member, base, more)  # while a GPU is at work
            if not finite:
                raise UserError(f"member {member} of the mixture makes images that are not finite: train it again.")
            yield x.cpu().numpy()[: count - number * size]

    def _noise(self, member: int, base: int, blocks: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """[blocks × 64, Z], and the key of what a generator draws by itself."""
        keys = rng.keys(np.full(len(blocks), base), blocks)
        with rng.using(self.stream_version):
            z = _prior(keys, (_BLOCK, self.latent), self.prior_of(member), self.generator(member)[0].dtype)
        return z.reshape(-1, self.latent), keys[:1]

    def _call(self, member: int, label: int, replica: int, z: Tensor, key: np.ndarray) -> tuple[Tensor, Tensor]:
        """Images on the device, and whether all of them are finite; a GPU has only been told to make them."""
        breed, state = self.generator(member, replica)
        device = self.device
        with torch.no_grad(), _repeatable(device), rng.using(self.stream_version):
            told = (torch.full((len(z),), label, device=device),) if takes_label(breed.module) else ()
            inputs = (z.to(device), *told)
            x = breed.evaluated(state, inputs, torch.from_numpy(rng.keys(key, rng.INSIDE))[0].to(device))
            x = x.float() * self.scale + self.offset
            return x.round().clamp(0, 255).to(torch.uint8) if self.is_image else x, torch.isfinite(x).all()

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        several = (
            [BreedConfig(generator=breed.net, members=breed.members) for breed in self.breeds]
            if self.breeds[1:]
            else []
        )
        facts = mixture_files.MixtureFacts(
            labels=list(self.labels),
            shape=list(self.shape),
            offset=self.offset,
            scale=self.scale,
            latent=self.latent,
            prior=self.prior if isinstance(self.prior, str) else list(self.prior),  # type: ignore[arg-type]
            generator=self.breeds[0].net,
            breeds=several,
            label_of=self.label_of.tolist(),
            weights=self.weights.tolist(),
            label_weights=self.label_weights.tolist(),
            seeds=self.seeds,
            step=self.step,
            winner=self.winner,
            neighbourhoods=self.neighbourhoods,
            streams=self.stream_version,  # type: ignore[arg-type]
        )
        mixture_files.write(folder, facts, tensors_of(self.breeds))


def load(path: str | Path, trust_code: bool = False) -> Mixture:
    """The mixture of a run folder (or of its `mixture` folder). Nothing in the folder is executed.

    >>> load("runs/no-such-run")
    Traceback (most recent call last):
    ganherd.util.errors.UserError: there is no run folder runs/no-such-run; `ganherd train --run runs/no-such-run` makes one.
    """
    folder = mixture_of(path)
    facts = mixture_files.read_facts(folder)
    tensors = mixture_files.read_tensors(folder, facts.sha256, partial(check_declared, facts, folder=folder))
    with importable_from(code_of(folder.parent) if trust_code else ()):
        breeds = breeds_of(facts, tensors, folder, trust_code)
    return Mixture(
        labels=tuple(facts.labels),
        shape=tuple(facts.shape),
        offset=facts.offset,
        scale=facts.scale,
        latent=facts.latent,
        prior=facts.prior if isinstance(facts.prior, str) else tuple(facts.prior),
        label_of=np.array(facts.label_of, np.int64),
        weights=np.array(facts.weights, np.float64),
        label_weights=np.array(facts.label_weights, np.float64),
        seeds=facts.seeds,
        step=facts.step,
        breeds=breeds,
        winner=facts.winner,
        neighbourhoods=facts.neighbourhoods,
        stream_version=facts.streams,
    )


def recalibrated(
    module: nn.Module,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    latent: int,
    prior: str,
    labels: Sequence[int],
    key: int,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """The buffers of one generator with its batch-norm statistics re-estimated, from noise, with the weights that are exported.

    While it trained they followed weights that moved. Only batch norm is in training mode here, so dropout stays off.
    `labels`: those that it makes, in turn, where it takes one: its own, or all.
    """
    trained = {name for name, layer in module.named_modules() if layer.training}
    module = member_module(module, {name: value.to(device) for name, value in (params | buffers).items()})
    norms = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats and name in trained
    }
    if not norms:
        return buffers
    dtype = next(iter(params.values())).dtype
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
        norm.train()
    own = {f"{name}.{part}".lstrip("."): value for name, norm in norms.items() for part, value in norm.named_buffers()}
    others = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    turns = torch.tensor(list(labels) or [0])[torch.arange(512) % max(len(labels), 1)]
    with torch.no_grad():
        for block in range(_NOISES // 512):
            base = np.array([rng.key(key, rng.CALIBRATE, block)])
            label = (turns.to(device),) if takes_label(module) else ()
            state = {name: value.clone() for name, value in others.items()} | own
            inputs = (_prior(base, (512, latent), prior, dtype)[0].to(device), *label)
            with MemberRandomness(torch.from_numpy(rng.keys(base, rng.INSIDE)).to(device)[0]):
                call_with_tensors(module, state, inputs)
            own = {name: state[name] for name in own}  # all other buffers stay as training left them
    # a norm that evaluation mode folds into another layer sees nothing, and stays as training left it
    used = {name for name in norms if own[f"{name}.num_batches_tracked".lstrip(".")] > 0}
    return buffers | {name: value.detach().cpu() for name, value in own.items() if name.rpartition(".")[0] in used}


def _prior(key: np.ndarray, shape: tuple[int, int], prior: str, dtype: torch.dtype) -> Tensor:
    kind = "normal" if prior == "normal" else "uniform"
    z = rng.draw(key, shape, kind, dtype)  # [keys, *shape]
    return z if kind == "normal" else z * 2.0 - 1.0


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """On a GPU: the same picture every time, and in full float32, so that it is the CPU's picture up to rounding."""
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
    """Draws by inversion: which interval of the cumulated weights each u in [0, 1) falls into."""
    edges = np.cumsum(weights / weights.sum())
    found = np.searchsorted(edges, u, side="right")
    return np.minimum(found, int(np.flatnonzero(weights)[-1])).astype(np.int64)  # rounding never picks a weight of 0
