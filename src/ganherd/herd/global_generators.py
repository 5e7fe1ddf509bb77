"""Seed and inspect the global random generators of Python, NumPy and PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ganherd.herd import rng


def outside_torch() -> dict[str, Any]:
    """Return the states of the global random generators of Python and NumPy, by the name of the module."""
    return {"random": random.getstate(), "numpy.random": np.random.get_state()}


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch inside this context, and restore their states afterwards.

    Args:
        seed: An integer of up to 64 bits, all of which influence the generators.
    """
    before, before_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])
            if torch.accelerator.is_available():  # its generators use all bits of the seed
                torch.manual_seed(seed)
            rng.seed_(torch.default_generator, seed)
            yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)
