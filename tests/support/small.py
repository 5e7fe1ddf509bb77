"""Small things that several suites train on: 3 classes of 8-pixel images that a net learns in seconds, and runs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LABELS = ("zero", "one", "2")  # the last one's name is its number, the others' are not


def small_data(path: Path, labels: tuple[str, ...] = LABELS, each: tuple[int, ...] = (40, 20, 20)) -> Path:
    """An .npz of a bright row, column or diagonal, with noise; of unequal classes, so that p(y) can be seen."""
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(len(labels)), each[: len(labels)])
    x = random.integers(0, 60, (len(y), 1, 8, 8))
    place = random.integers(2, 6, len(y))
    for i, k in enumerate(y):
        rows, columns = [(place[i], slice(None)), (slice(None), place[i]), (np.arange(8), np.arange(8))][k % 3]
        x[i, 0, rows, columns] += 180
    np.savez(path, x=x.astype(np.uint8), y=y, labels=np.array(labels))
    return path


def small_recipe(source: Path | str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A recipe of a few quick steps on that data, with an engine that needs no measuring."""
    recipe: dict[str, Any] = {
        "data": {"source": str(source)},
        "nets": {
            "generator": {"name": "small", "width": 16},
            "discriminator": {"name": "small", "width": 16},
            "latent": 8,
        },
        "train": {"budget": "6steps", "batch": 8, "ema": 0.9},
        "engine": {"name": "loop", "threads": 1, "chunk": 3, "device": "cpu"},
        "run": {"record_every": 2, "checkpoint_every": 3, "sample_every": 0},
    }
    for name, values in sections.items():
        recipe[name] = {**recipe.get(name, {}), **values}
    return recipe
