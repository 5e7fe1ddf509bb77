"""Runs for the page to show, and a server that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page_server
import pytest
import recipes
import tiny_runs

import ganherd
from ganherd.api import ScoreFinisher


@pytest.fixture(scope="package")
def shown_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three finished runs: one per class with scores, a grid, and swaps on points. Tests must not change them."""
    folder = tmp_path_factory.mktemp("shown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ganherd.mixture.recalibration.NOISES", 1024)
        settings = recipes.noise_recipe(folder, "30steps", sample_every=10)
        ganherd.train(settings, run=folder / "classes", quiet=True, finishers=[ScoreFinisher()])
        data = recipes.noise_data(folder / "grid.npz")
        cellular = {"grid": [2, 3], "iteration": "4steps", "fitness": {"samples": 16}}
        grid = recipes.tiny_recipe(
            data,
            data={"partition": "all"},
            strategy={"name": "cellular", "cellular": cellular},
            train={"budget": "24steps"},
            run={"record_every": 4},
        )
        tiny_runs.train(folder / "grid", grid)
        points = recipes.tiny_recipe(
            "ring8",
            data={"partition": "all"},
            herd={"members": 4},
            strategy={"name": "gap", "gap": {"every": "5steps", "warmup": "5"}},
            train={"budget": "30steps"},
            run={"record_every": 5},
        )
        points["nets"] = {"latent": 4, "generator": {"name": "toy"}, "discriminator": {"name": "toy"}}
        tiny_runs.train(folder / "points", points)
    return folder


@pytest.fixture(scope="package")
def page(shown_runs: Path) -> Iterator[page_server.PageServer]:
    """Return a server that shows `shown_runs`."""
    with page_server.serving([shown_runs]) as server:
        yield server
