"""Random images for the benchmarks, the same for every way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ganherd.bench.cases import IMAGES, Case


def images(case: Case) -> np.ndarray:
    """Return the images of a case, uint8 [n, C, H, W].

    >>> from ganherd.bench.cases import known
    >>> images(known("small")).shape
    (5000, 1, 8, 8)
    """
    return np.random.default_rng(0).integers(0, 256, (IMAGES, *case.shape), dtype=np.uint8)


@contextmanager
def as_file(case: Case) -> Iterator[Path]:
    """Write the images to a temporary file, for a recipe."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "random.npz"
        np.savez(path, x=images(case))
        yield path
