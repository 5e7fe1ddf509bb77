"""The random numbers of a mixture's samples: noise, the choice of members, and paths from one noise to another.

There are two versions of random streams. In the usual one, 64 consecutive samples share a random key. In the portable
one, that of exported models, every sample has its own key.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng

BLOCK = 64  # samples that share a random key, on every device, so that sample i does not depend on their number


def path_between(first: Tensor, last: Tensor, frames: int, is_normal: bool) -> Tensor:
    """Return noise [frames, Z] that moves from one noise [Z] to another, both ends included.

    Normal noise of many numbers has a typical length, which a straight line would leave, so it moves along an arc
    instead.
    """
    at = torch.linspace(0.0, 1.0, frames, dtype=first.dtype)[:, None]
    if is_normal:
        cosine = torch.nn.functional.cosine_similarity(first, last, dim=0).clamp(-1.0, 1.0)
        angle = torch.arccos(cosine)
        if torch.sin(angle) > 1e-4:
            return (torch.sin((1 - at) * angle) * first + torch.sin(at * angle) * last) / torch.sin(angle)
    return (1 - at) * first + at * last


def draw_prior(key: np.ndarray, shape: tuple[int, int], prior: str, dtype: torch.dtype) -> Tensor:
    """Return noise [keys, *shape]: normal, or uniform in [-1, 1).

    Args:
        key: int64 [keys], random keys.
        shape: The shape of the noise of one key.
        prior: `normal` or `uniform`.
        dtype: The type of the noise.
    """
    kind = "normal" if prior == "normal" else "uniform"
    z = rng.draw(key, shape, kind, dtype)  # [keys, *shape]
    return z if kind == "normal" else z * 2.0 - 1.0


def portable_keys(seed: int, rows: np.ndarray, purpose: int) -> np.ndarray:
    """Return the random key of each sample in portable streams, int64 [n]: sample i of a seed has the key of seed + i.

    Args:
        seed: The seed.
        rows: int64 [n], the numbers i of the samples.
        purpose: What the random numbers are for, a constant of `herd.rng`.
    """
    return rng.keys(np.zeros(len(rows), np.int64), seed + rows, purpose)


def draw_routes(n: int, seed: int, stream_version: int) -> np.ndarray:
    """Return two uniform random numbers for each sample, float64 [n, 2], which decide its member and its label.

    The numbers of sample i depend on the seed and i only.
    """
    with rng.using(stream_version):
        if stream_version == rng.PORTABLE:
            return rng.draw(portable_keys(seed, np.arange(n), rng.ROUTE), (2,), "uniform", torch.float64).numpy()
        blocks = -(-n // BLOCK)
        keys = rng.keys(np.full(blocks, rng.key(seed, rng.ROUTE)), np.arange(blocks))
        return rng.draw(keys, (BLOCK, 2), "uniform", torch.float64).reshape(-1, 2)[:n].numpy()


def draw_indices(weights: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return an index for each uniform number u [n] in [0, 1), int64 [n]; index i has a probability ∝ weights[i].

    It inverts the cumulative distribution of the weights.
    """
    edges = np.cumsum(weights / weights.sum())
    indices = np.searchsorted(edges, u, side="right")
    # Rounding must never select an index of weight 0.
    return np.minimum(indices, int(np.flatnonzero(weights)[-1])).astype(np.int64)
