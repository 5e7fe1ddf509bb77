"""Runs and mixtures keep the version of the random streams with which they were created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
import torch

import ganherd
from ganherd.herd import rng
from ganherd.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def without_version(path: Path) -> None:
    """Take out of a JSON file what files from before there were versions do not have."""
    facts = json.loads(path.read_text())
    del facts["streams"]
    path.write_text(json.dumps(facts, indent=1))


def old_run(run: Path, settings: dict[str, Any]) -> None:
    """Train a run as it was before streams had a version."""
    with rng.using(1):
        tiny_runs.train(run, settings)
    without_version(run / "run.json")
    without_version(run / "mixture" / "mixture.json")


def weights(run: Path) -> dict[str, Any]:
    return {name: value.numpy().tobytes() for name, value in run_files.tensors(run_files.last_checkpoint(run)).items()}


def test_a_new_run_records_the_newest_version_and_draws_from_it(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "3steps", "tiny")
    tiny_runs.train(tmp_path / "new", settings)
    old_run(tmp_path / "old", settings)
    assert RunFolder(tmp_path / "new").info.streams == ganherd.load(tmp_path / "new").stream_version == 2
    assert weights(tmp_path / "new") != weights(tmp_path / "old")


@pytest.mark.further("wcgan")
@pytest.mark.parametrize("net", ["small", "wcgan"])  # dropout, noise, penalties, orders, fresh batch norms
def test_a_run_without_a_version_is_resumed_exactly_with_the_old_streams(tmp_path: Path, net: str) -> None:
    old_run(tmp_path / "whole", recipes.noise_recipe(tmp_path, "16steps", net))
    old_run(tmp_path / "halves", recipes.noise_recipe(tmp_path, "8steps", net))
    tiny_runs.resume(tmp_path / "halves", "16steps")
    assert RunFolder(tmp_path / "halves").info.streams is None
    assert ganherd.load(tmp_path / "halves").stream_version == 1
    without_version(tmp_path / "halves" / "mixture" / "mixture.json")
    run_files.assert_same_run(tmp_path / "halves", tmp_path / "whole")


def test_a_repair_in_an_old_run_draws_fresh_weights_from_the_old_streams(tmp_path: Path) -> None:
    reseeding = {"repair": {"policy": "reseed", "diverged": 1e-9}}
    old_run(tmp_path / "whole", recipes.noise_recipe(tmp_path, "9steps", "tiny", **reseeding))
    old_run(tmp_path / "halves", recipes.noise_recipe(tmp_path, "4steps", "tiny", **reseeding))
    tiny_runs.resume(tmp_path / "halves", "9steps")
    assert "repair" in {line["event"] for line in RunFolder(tmp_path / "halves").events()}
    assert weights(tmp_path / "halves") == weights(tmp_path / "whole")


def test_an_old_mixture_reproduces_its_images(tmp_path: Path) -> None:
    """Image i of a seed stays the same image, however many are drawn."""
    old_run(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps", "tiny"))
    mixture = ganherd.load(tmp_path / "run")
    samples = mixture.sample(100, seed=3)
    breed, state = mixture.generator(1)
    block = rng.keys(np.array([rng.key(3, rng.SAMPLE, 0, 1, 2)]), 0)
    z = torch.randn(64, mixture.latent, generator=torch.Generator().manual_seed(int(block[0])))
    with torch.no_grad():
        expected = torch.func.functional_call(breed.module, state, (z,)) * mixture.scale + mixture.offset
    own = samples.x[samples.member == 1]
    assert 5 < len(own) <= 64
    assert np.array_equal(own, expected.round().clamp(0, 255).to(torch.uint8).numpy()[: len(own)])
    assert np.array_equal(mixture.sample(10, seed=3).x, samples.x[:10])
    mixture.save(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "mixture.json").read_text())
    assert again["streams"] == 1


def test_an_unknown_version_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps", "tiny"))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    for wrong in (3, 0, "2", True, None, [2]):
        (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "streams": wrong}))
        assert tiny_runs.command("train", "--resume", tmp_path / "run", "--budget", "5steps", "-q") == 2
        said = capsys.readouterr().err
        assert "unknown version of the random streams" in said and "run.json" in said and len(said.splitlines()) == 1
