"""Fixtures for the promises about ranks: a small data set and short runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch


@pytest.fixture(scope="module")
def plain_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=np.random.default_rng(0).integers(0, 256, (60, 1, 6, 6), np.uint8))
    return path


@pytest.fixture(scope="module")
def brief() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        torch.set_num_threads(1)
        yield
