"""Generate the samples of one member of a mixture: draw its noise, and call its generator on full batches of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.data.units import to_data
from ganherd.herd import rng
from ganherd.herd.state import takes_label
from ganherd.mixture.mixture_noise import BLOCK, draw_prior, path_between, portable_keys
from ganherd.util.errors import NotFinite

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture

_CALL = {"cpu": 64, "cuda": 1024}  # images per call of a generator; always full, so that results are bit-exact


@dataclass(frozen=True)
class MemberSampler:
    """The samples of one member of a mixture for one label."""

    mixture: Mixture
    member: int
    label: int  # -1: none
    replica: int = 0

    def images(self, rows: np.ndarray, seed: int = 0, truncation: float = 1.0) -> Iterator[np.ndarray]:
        """Yield samples of a seed, batch by batch; see `Mixture.images`."""
        count = len(rows)
        batch = _CALL.get(self.mixture.device.type, BLOCK)
        blocks = batch // BLOCK
        calls = [
            (np.arange(first // BLOCK, first // BLOCK + blocks), rows[first : first + batch])
            for first in range(0, count, batch)
        ]
        noise = self.noise(seed, *calls[0])
        for number, next_call in enumerate([*calls[1:], None]):
            z, key = noise
            x, finite = self._call(z * truncation if truncation != 1.0 else z, key)
            if next_call is not None:
                noise = self.noise(seed, *next_call)  # while a GPU generates the current batch
            self._refuse_infinite(finite)
            yield x.cpu().numpy()[: count - number * batch]

    def walk(self, frames: int, seeds: tuple[int, int], truncation: float = 1.0) -> np.ndarray:
        """Return samples [frames, …] on the way from the first sample of one seed to the first sample of another."""
        ends = [self.noise(seed, np.arange(1), np.arange(1)) for seed in dict.fromkeys(seeds)]
        (first, key), (last, _) = ends[0], ends[-1]
        is_normal = self.mixture.prior_of(self.member) == "normal"
        path = path_between(first[0], last[0], frames, is_normal) * truncation  # [frames, Z]
        batches = []
        for start in range(0, frames, BLOCK):
            z = path[start : start + BLOCK]
            full = torch.cat([z, z[-1:].expand(BLOCK - len(z), -1)])  # always full, as for all samples
            x, finite = self._call(full, key)
            self._refuse_infinite(finite)
            batches.append(x.cpu().numpy()[: len(z)])
        return np.concatenate(batches)

    def noise(self, seed: int, blocks: np.ndarray, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Return noise [blocks × 64, Z], and the key for random numbers inside the generator.

        Args:
            blocks: The numbers of the blocks among the samples of this member and label; each block has a stream.
            rows: The numbers of the samples among all samples of the seed, at most as many as fit the blocks. With portable
                streams every sample has its own stream, instead of every block.
        """
        mixture = self.mixture
        base = rng.key(seed, rng.SAMPLE, self.replica, self.member, self.label + 1)
        keys, shape = rng.keys(np.full(len(blocks), base), blocks), (BLOCK, mixture.latent)
        inside = keys[:1]
        if mixture.stream_version == rng.PORTABLE:
            missing = len(blocks) * BLOCK - len(rows)
            keys = np.pad(portable_keys(seed, rows, rng.SAMPLE), (0, missing), mode="edge")  # batches are always full
            shape = (1, mixture.latent)
        with rng.using(mixture.stream_version):
            z = draw_prior(keys, shape, mixture.prior_of(self.member), mixture.generator(self.member)[0].dtype)
        return z.reshape(-1, mixture.latent), inside

    def _call(self, z: Tensor, key: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return samples on the device, and whether all are finite. On a GPU this only queues the work."""
        mixture = self.mixture
        breed, state = mixture.generator(self.member, self.replica)
        device = mixture.device
        with torch.no_grad(), _repeatable(device), rng.using(mixture.stream_version):
            labels = (torch.full((len(z),), self.label, device=device),) if takes_label(breed.module) else ()
            inputs = (z.to(device), *labels)
            x = breed.evaluated(state, inputs, torch.from_numpy(rng.keys(key, rng.INSIDE))[0].to(device))
            x = to_data(x.float(), mixture)
            return x.round().clamp(0, 255).to(torch.uint8) if mixture.is_image else x, torch.isfinite(x).all()

    def _refuse_infinite(self, finite: Tensor) -> None:
        """Raise `NotFinite` if not all samples are finite."""
        if not finite:
            raise NotFinite(
                f"member {self.member} of the mixture generates numbers that are not finite: train it again."
            )


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
