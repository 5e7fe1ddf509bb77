"""Draw random numbers that depend on a key only: the same key gives the same numbers on every machine.

Partitions and samples of data use them; the order of a member's batches is drawn in `herd/batch_feed.py`. The numbers are made
from raw bits: numpy promises those, and not its distributions, to stay the same in later versions.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def raw(n: int, purpose: str, *key: int) -> npt.NDArray[np.uint64]:
    """Return `n` raw 64-bit numbers of the stream of a purpose and a key of non-negative integers."""
    start = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    bits = np.random.PCG64(np.random.SeedSequence([start, *key])).random_raw(n)
    return np.asarray(bits, dtype=np.uint64)


def shuffle(n: int, purpose: str, *key: int) -> npt.NDArray[np.int64]:
    """Return a random permutation of 0 … n-1, which depends on the purpose and the key only.

    >>> shuffle(5, "example", 1).tolist() == shuffle(5, "example", 1).tolist()
    True
    >>> sorted(shuffle(5, "example", 2).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(raw(n, purpose, *key), kind="stable").astype(np.int64)


def normal(n: int, purpose: str, *key: int) -> npt.NDArray[np.float64]:
    """Return `n` standard normal numbers, by the method of Box and Muller."""
    half = (n + 1) // 2
    bits = raw(2 * half, purpose, *key)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1), so the logarithm is finite
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]
