"""Promises 2 and 3 for rows: ranks and a resumed run give the same herd, records and mixture on a table."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_runs

import ganherd
from ganherd.recipe import recipe_file
from promises.test_ranks import assert_same_herd, launch

pytestmark = pytest.mark.usefixtures("brief")
SETTINGS = [
    "train.budget=12steps",
    "train.precision=float64",
    "train.batch=16",
    "nets.generator.width=8",
    "nets.discriminator.width=8",
    "run.record_every=3",
    "run.checkpoint_every=6",
    "run.sample_every=6",
    "run.sprites=4",
    "run.watch.every=3",
    "engine.name=fused",
    "engine.threads=1",
    "engine.device=cpu",
]


@pytest.mark.further
def test_a_table_trains_alike_on_ranks_and_after_a_stop(tmp_path: Path) -> None:
    whole = recipe_file.load("wine-wcgan", SETTINGS).model_dump(mode="json")
    tiny_runs.train(tmp_path / "one", whole)
    code, output = launch("forked", 2, [["begin", whole, str(tmp_path / "two")]])
    assert code == 0, output
    assert_same_herd(tmp_path / "two", tmp_path / "one")
    half = recipe_file.load("wine-wcgan", [*SETTINGS, "train.budget=6steps"]).model_dump(mode="json")
    tiny_runs.train(tmp_path / "half", half)
    tiny_runs.resume(tmp_path / "half", "12steps")
    assert_same_herd(tmp_path / "half", tmp_path / "one", names=("metrics.jsonl",), sprites=False)
    samples = [ganherd.load(tmp_path / name).sample(50).x for name in ("one", "two", "half")]
    assert all(abs(samples[0] - other).max() < 1e-3 for other in samples[1:])
