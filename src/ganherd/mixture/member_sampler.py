"""Generate the samples of one member of a mixture: draw its noise, and call its generator on full batches of noise.

The noise is drawn in blocks of 64 samples, each with a random key of its own, so that sample i is the same whatever
number of samples is drawn. Portable streams, those of exported models, have a key for each sample instead.
"""

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

# Samples per call of a generator, by type of device. Calls are always full, so that results are bit-exact.
_CALL = {"cpu": 64, "cuda": 1024}


@dataclass(frozen=True)
class MemberSampler:
    """Generates the samples of one member of a mixture for one label."""

    mixture: Mixture
    member: int
    label: int  # the number of the label; -1: none
    replica: int = 0

    def images(self, rows: np.ndarray, seed: int = 0, truncation: float = 1.0) -> Iterator[np.ndarray]:
        """Yield the samples of a seed, batch by batch, as arrays [B, …] in the units of the data.

        Args:
            rows: int64 [n], the number of each sample among all samples of the seed (those of other members included).
            seed: The seed.
            truncation: Factor by which the noise is scaled.
        """
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
                noise = self.noise(seed, *next_call)  # drawn on the CPU while a GPU generates the current batch
            self._refuse_infinite(finite)
            yield x.cpu().numpy()[: count - number * batch]

    def walk(self, frames: int, seeds: tuple[int, int], truncation: float = 1.0) -> np.ndarray:
        """Return samples [frames, …] for noise that moves from the first noise of one seed to the first of another."""
        ends = [self.noise(seed, np.arange(1), np.arange(1)) for seed in dict.fromkeys(seeds)]
        (first, key), (last, _) = ends[0], ends[-1]
        is_normal = self.mixture.prior_of(self.member) == "normal"
        path = path_between(first[0], last[0], frames, is_normal) * truncation  # [frames, Z]
        batches = []
        for start in range(0, frames, BLOCK):
            z = path[start : start + BLOCK]
            full = torch.cat([z, z[-1:].expand(BLOCK - len(z), -1)])  # Calls are always full (see `_CALL`).
            x, finite = self._call(full, key)
            self._refuse_infinite(finite)
            batches.append(x.cpu().numpy()[: len(z)])
        return np.concatenate(batches)

    def noise(self, seed: int, blocks: np.ndarray, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Return noise for blocks of samples [blocks × 64, Z], and the key for random numbers inside the generator.

        Args:
            seed: The seed of the samples.
            blocks: The numbers of the blocks among the samples of this member and label; each block has its random key.
            rows: The numbers of the samples among all samples of the seed, at most as many as the blocks hold. They are
                used with portable streams only, in which each sample has its random key.
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
        """Return the samples for noise z [B, Z] in the units of the data, and whether all are finite, as tensors.

        Both are on the device of the mixture; on a GPU the call returns before they are computed.
        """
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
    """Within the block, let a GPU compute deterministically and in full float32, so that samples are those of a CPU.

    They still differ by rounding. The settings of PyTorch are restored afterwards.
    """
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
