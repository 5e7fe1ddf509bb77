"""Run folders of November 2026 are read, sampled, scored, reported and resumed exactly by the present code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_files
import torch
from run_fixtures import Answer
from safetensors.torch import load_file

from ganherd import report
from ganherd.runs.folder import RunFolder, saved_steps

OLDER = Path(__file__).resolve().parents[1] / "data" / "runs-2026-11"
RESUMED = json.loads((OLDER / "resumed.json").read_text())
HERE = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
LATER_KEYS = {"real_interval"}  # keys of scores that the version that wrote these runs did not have
MEMBERS = {"independent": 10, "gap": 4, "cellular": 4}
Command = Callable[..., Answer]

pytestmark = pytest.mark.parametrize("strategy", list(MEMBERS))


@pytest.fixture
def run(strategy: str, tmp_path: Path) -> Path:
    run_files.unpack(OLDER / f"{strategy}.tar.gz", tmp_path)
    return tmp_path / strategy


def test_it_is_read(run: Path, strategy: str, cli: Command) -> None:
    answer = cli("status", run, "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["state"], told["members"]) == (0, "finished", MEMBERS[strategy]), answer
    assert told["step"] == told["steps"] == saved_steps(RunFolder(run).checkpoints)[-1]
    assert cli("status", run).code == 0


def test_it_is_sampled(run: Path, strategy: str, cli: Command, tmp_path: Path) -> None:
    assert cli("sample", run, "-n", 6, "-o", tmp_path / "samples.npz").code == 0
    with np.load(tmp_path / "samples.npz") as samples:
        assert samples["x"].shape == ((6, 2) if strategy == "gap" else (6, 1, 8, 8))


def test_its_scores_are_the_same(run: Path, strategy: str, cli: Command) -> None:
    before = json.loads((run / "scores.json").read_text())["scores"]
    names = ["diversity", "modes"] if strategy == "gap" else ["diversity"]
    answer = cli("score", run, "--metrics", ",".join(names), "--network", "pixels", "--json")
    assert answer.code == 0, answer
    after = json.loads(answer.out)["scores"]
    for name in names:
        assert [key for key in after[name] if key not in LATER_KEYS] == list(before[name])
        assert after[name]["value"] == pytest.approx(before[name]["value"], rel=0 if _same_machine() else 1e-4)
    kept = json.loads((run / "scores.json").read_text())["scores"]
    assert {name: kept[name] for name in before if name not in names} == {
        name: entry for name, entry in before.items() if name not in names
    }


def test_it_is_reported(run: Path, strategy: str) -> None:
    page = report.write(run).read_text()
    assert strategy in page and "<svg" in page
    assert "could not be read" not in page


def test_it_is_resumed_exactly(run: Path, strategy: str, cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganherd.api.FINISHERS", ())
    info, state = _json(run / "run.json"), _json(next(run.glob("checkpoints/*/state.json")))
    lines = (run / "metrics.jsonl").read_bytes()[: state["bytes"]["metrics"]]
    answer = cli("train", "--resume", run, "--budget", RESUMED["budget"], "--quiet")
    assert answer.code == 0, answer
    [file] = (run / "checkpoints" / "step-00000030").glob("*.safetensors")
    tensors, expected = load_file(file), RESUMED["tensors"][strategy]
    assert set(tensors) == set(expected)
    if _same_machine():
        digests = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
        assert digests == {name: one["sha256"] for name, one in expected.items()}
    norms = {name: float(tensor.double().norm()) for name, tensor in tensors.items()}
    assert norms == pytest.approx({name: one["norm"] for name, one in expected.items()}, rel=1e-3, abs=1e-5)
    now = _json(run / "run.json")
    assert set(now) == {*info, "memory", "reason"} and now["step"] == 30
    assert (run / "metrics.jsonl").read_bytes().startswith(lines)


def _same_machine() -> bool:
    """Return whether arithmetic here is that of the recorded digests: the same PyTorch and the same vector instructions."""
    return bool(RESUMED["machine"] == HERE)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
