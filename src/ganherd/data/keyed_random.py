"""Draw random numbers that depend on a key only: the same key gives the same numbers on every machine.

They are used to choose rows of data; the order of a member's batches is drawn in `herd/batch_feed.py` instead. Numbers
are computed here from random bits, because numpy guarantees only its bits, not its distributions, to stay the same in
later versions.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def raw(n: int, purpose: str, *key: int) -> npt.NDArray[np.uint64]:
    """Return n random 64-bit numbers, uint64 [n], which depend on the purpose and the key (integers ≥ 0) only."""
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
    """Return n standard normal numbers, float64 [n], which depend on the purpose and the key (integers ≥ 0) only.

    Two uniform numbers give two normal ones by the method of Box and Muller.
    """
    half = (n + 1) // 2
    bits = raw(2 * half, purpose, *key)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1), so the logarithm is finite
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]
