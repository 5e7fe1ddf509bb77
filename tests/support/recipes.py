"""Recipes that train in a blink, and the data they train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

LABELS = ("zero", "one", "2")  # the last label is its own number, the others are not

NETS: dict[str, dict[str, Any]] = {
    # a gradient penalty, batch norm in the generator, several critic updates
    "small": {
        "nets": {
            "latent": 4,
            "generator": {"name": "small", "width": 8, "batch_norm": True},
            "discriminator": {"name": "small", "width": 8},
        },
        "loss": {"name": "wasserstein-gp"},
        "train": {"batch": 8, "ema": 0.9, "n_critic": 2},
    },
    # nothing that takes time
    "tiny": {
        "nets": {
            "latent": 2,
            "generator": {"name": "small", "width": 3},
            "discriminator": {"name": "small", "width": 3},
        },
        "loss": {"name": "hinge"},
        "train": {"batch": 4, "ema": None},
    },
    # dropout, batch norm in both, noise on what the discriminator sees, steps without the discriminator
    "wcgan": {
        "nets": {
            "latent": 4,
            "generator": {"name": "wcgan", "width": 4},
            "discriminator": {"name": "wcgan", "width": 2},
        },
        "loss": {"name": "wasserstein"},
        "train": {"batch": 8, "ema": 0.9, "skip_d": 1, "order": "g-d", "input_noise": 0.1, "input_noise_steps": 20},
    },
}


def tiny_recipe(source: Path | str, **overrides: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe of a few quick steps on this data, without pictures, for an engine that needs no autotuning.

    Args:
        source: The data, e.g. a file of `tiny_data`.
        overrides: Sections of the recipe. Their keys are added to those of the tiny recipe or replace them; a value of
            None removes the key, so that ganherd's default holds.
    """
    recipe: dict[str, Any] = {
        "data": {"source": str(source)},
        "nets": {
            "generator": {"name": "small", "width": 16},
            "discriminator": {"name": "small", "width": 16},
            "latent": 8,
        },
        "train": {"budget": "6steps", "batch": 8, "ema": 0.9},
        "engine": {"name": "loop", "threads": 1, "chunk": 3, "device": "cpu"},
        "run": {"record_every": 2, "checkpoint_every": 3, "sample_every": 0, "sprites": 0},
    }
    for name, values in overrides.items():
        section = {**recipe.get(name, {}), **values}
        recipe[name] = {key: value for key, value in section.items() if value is not None}
    return recipe


def noise_recipe(
    folder: Path, budget: str = "30steps", net: str = "small", engine: str = "fused", **run: Any
) -> dict[str, Any]:
    """Return a tiny recipe of three members, one per class of `noise_data`; no two intervals of it coincide.

    Args:
        net: A key of NETS.
        run: Keys of the section `run`.
    """
    sections = NETS[net]
    return tiny_recipe(
        noise_data(folder / "data.npz"),
        nets=sections["nets"],
        loss=sections["loss"],
        train={**sections["train"], "budget": budget},
        engine={"name": engine, "chunk": None},
        run={"record_every": 3, "checkpoint_every": 7, "watch": {"every": 4}, "sprites": None, **run},
    )


def write_recipe(folder: Path, **settings: Any) -> Path:
    """Write a `noise_recipe` to a file and return its path."""
    path = folder / "little.yaml"
    path.write_text(json.dumps(noise_recipe(folder, **settings)))  # JSON is YAML
    return path


def tiny_data(path: Path, labels: tuple[str, ...] = LABELS, each: tuple[int, ...] = (40, 20, 20)) -> Path:
    """Write 8-pixel images of a bright row, column or diagonal with noise, which a net learns in seconds.

    The classes are unequal, so that p(y) can be told from a uniform one.
    """
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(len(labels)), each[: len(labels)])
    x = random.integers(0, 60, (len(y), 1, 8, 8))
    place = random.integers(2, 6, len(y))
    for i, k in enumerate(y):
        rows, columns = [(place[i], slice(None)), (slice(None), place[i]), (np.arange(8), np.arange(8))][k % 3]
        x[i, 0, rows, columns] += 180
    np.savez(path, x=x.astype(np.uint8), y=y, labels=np.array(labels))
    return path


def noise_data(path: Path) -> Path:
    """Write random 8-pixel images of three unequal classes, unless the file is there."""
    if not path.exists():
        random = np.random.default_rng(0)
        np.savez(path, x=random.integers(0, 256, (46, 1, 8, 8), np.uint8), y=np.repeat([0, 1, 2], [23, 9, 14]))
    return path
