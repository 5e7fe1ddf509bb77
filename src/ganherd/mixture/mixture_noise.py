"""The random numbers of a mixture: its priors, portable keys, routes to members, and paths from one noise to another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng

BLOCK = 64  # images that share a random key, on every device, so that image i is the same for every n


def path_between(first: Tensor, last: Tensor, frames: int, is_normal: bool) -> Tensor:
    """Return noise [frames, Z] from one noise [Z] to another: along an arc for normal noise, which has a typical length."""
    at = torch.linspace(0.0, 1.0, frames, dtype=first.dtype)[:, None]
    if is_normal:
        cosine = torch.nn.functional.cosine_similarity(first, last, dim=0).clamp(-1.0, 1.0)
        angle = torch.arccos(cosine)
        if torch.sin(angle) > 1e-4:
            return (torch.sin((1 - at) * angle) * first + torch.sin(at * angle) * last) / torch.sin(angle)
    return (1 - at) * first + at * last


def draw_prior(key: np.ndarray, shape: tuple[int, int], prior: str, dtype: torch.dtype) -> Tensor:
    """Return noise [keys, *shape]: normal, or uniform in [-1, 1)."""
    kind = "normal" if prior == "normal" else "uniform"
    z = rng.draw(key, shape, kind, dtype)  # [keys, *shape]
    return z if kind == "normal" else z * 2.0 - 1.0


def portable_keys(seed: int, rows: np.ndarray, purpose: int) -> np.ndarray:
    """Return the key of each sample in portable streams: sample i of a seed is the sample of the seed + i."""
    return rng.keys(np.zeros(len(rows), np.int64), seed + rows, purpose)


def draw_routes(n: int, seed: int, stream_version: int) -> np.ndarray:
    """Return uniform numbers, float64 [n, 2], that decide the member and the label of each sample.

    The numbers of sample i depend on (seed, i) only.
    """
    with rng.using(stream_version):
        if stream_version == rng.PORTABLE:
            return rng.draw(portable_keys(seed, np.arange(n), rng.ROUTE), (2,), "uniform", torch.float64).numpy()
        blocks = -(-n // BLOCK)
        keys = rng.keys(np.full(blocks, rng.key(seed, rng.ROUTE)), np.arange(blocks))
        return rng.draw(keys, (BLOCK, 2), "uniform", torch.float64).reshape(-1, 2)[:n].numpy()


def draw_indices(weights: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Draw indices by inverting the cumulative distribution of the weights at u in [0, 1)."""
    edges = np.cumsum(weights / weights.sum())
    indices = np.searchsorted(edges, u, side="right")
    # Rounding must never select an index of weight 0.
    return np.minimum(indices, int(np.flatnonzero(weights)[-1])).astype(np.int64)
