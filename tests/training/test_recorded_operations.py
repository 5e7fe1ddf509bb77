"""A run computes with the operations that it was started with, also if newer ones are faster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_runs
from recipes import noise_recipe

import ganherd
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Plan
from ganherd.herd.lowering import ops_onednn
from ganherd.runs.folder import RunFolder
from ganherd.runs.models import EngineRecord
from ganherd.util.errors import UserError


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def weights(run: Path) -> bytes:
    return (run / "mixture" / "generators.safetensors").read_bytes()


def record_of(run: Path) -> dict[str, object]:
    facts: dict[str, dict[str, object]] = json.loads(RunFolder(run).info_path.read_text())
    return facts["engine"]


def test_new_runs_use_and_record_those_for_a_cpu(tmp_path: Path) -> None:
    ganherd.train(noise_recipe(tmp_path, "4steps"), run=tmp_path / "run", quiet=True)
    assert record_of(tmp_path / "run")["operations"] in ("cpu", "cpu-onednn")


def test_a_run_that_records_none_is_resumed_with_the_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = noise_recipe(tmp_path, "4steps")
    recipe["train"]["precision"] = "float32"  # they round differently
    recipe["engine"] = {"name": "fused"}
    with monkeypatch.context() as before:
        before.setattr(autotune, "new_plan", lambda *plan: Plan(*plan[:3], str(plan[3])))
        whole = ganherd.train(recipe, run=tmp_path / "whole", quiet=True)
        older = ganherd.train(recipe, run=tmp_path / "older", budget="2steps", quiet=True)
    newer = ganherd.train(recipe, run=tmp_path / "newer", budget="2steps", quiet=True)

    path = RunFolder(older.path).info_path
    facts = json.loads(path.read_text())
    assert facts["engine"].pop("operations") == "plain"
    path.write_text(json.dumps(facts))
    assert weights(ganherd.resume(older.path, ["train.budget=4steps"], quiet=True).path) == weights(whole.path)
    assert weights(ganherd.resume(newer.path, ["train.budget=4steps"], quiet=True).path) != weights(whole.path)


def test_operations_that_this_pytorch_lacks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ganherd.train(noise_recipe(tmp_path, "2steps"), run=tmp_path / "run", quiet=True)
    path = RunFolder(run.path).info_path
    facts = json.loads(path.read_text())
    facts["engine"]["operations"] = "cpu-onednn"
    path.write_text(json.dumps(facts))
    monkeypatch.setattr(ops_onednn, "is_available", lambda: False)
    with pytest.raises(UserError, match="products by oneDNN"):
        ganherd.resume(run.path, ["train.budget=4steps"], quiet=True)


def test_unknown_operations_are_refused() -> None:
    record = {"name": "fused", "chunk": 1, "threads": 1, "device": "cpu"}
    assert EngineRecord.parse(record).operations == "plain"
    with pytest.raises(ValueError, match="operations"):
        EngineRecord.parse({**record, "operations": "abacus"})
