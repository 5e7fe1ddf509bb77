"""A recipe of narrow nets on a small data set, which the tests of equal runs adapt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def recipe(data: Path, *changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the recipe with these sections changed, the last change counting most; no pictures are drawn unless one asks."""
    made: dict[str, Any] = {
        "data": {"source": str(data), "partition": "diet", "diet": 0.5},
        "nets": {
            "latent": 3,
            "generator": {"name": "small", "width": 5, "batch_norm": True},
            "discriminator": {"name": "small", "width": 5},
        },
        "loss": {"name": "non-saturating"},
        "train": {"batch": 4, "ema": 0.9},
        "engine": {"name": "fused", "threads": 1, "device": "cpu"},
        "run": {"record_every": 5, "checkpoint_every": 6, "sample_every": 0},
    }
    for change in changes:
        for section, values in change.items():
            made[section] = {**made.get(section, {}), **values}
    return made
