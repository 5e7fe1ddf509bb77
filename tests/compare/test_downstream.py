"""`ganherd compare --downstream`: what classifiers gain from the images of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ganherd.compare.downstream import downstream


def test_downstream_table_files_and_json(cli, run, monkeypatch) -> None:
    monkeypatch.setattr("ganherd.compare.downstream.downstream_classifier.STEPS", (5, 5))
    copy = Path(shutil.copytree(run, "copy"))
    answer = cli(
        "compare", "--downstream", copy, "--per-class", "2,9999", "--seeds", 2, "--generated", 20, "--json", "-q"
    )
    assert answer.code == 0, answer
    facts = json.loads(answer.out)["downstream"]["copy"]
    assert [row["real"] for row in facts["rows"]] == [0, 2, "all"] and facts["left_out"] == [9999]
    for row in facts["rows"]:
        assert (row["alone"] is None) == (row["real"] == 0) == (row["difference"] is None)
        assert len(row["with"]["per_seed"]) == 2 and 0 <= row["with"]["value"] <= 1
    with np.load(run.parent / "small.npz") as kept:
        assert facts["held_out"] + facts["seen"] == len(kept["y"])
    assert Path("copy/downstream.png").is_file() and json.loads(Path("copy/downstream.json").read_text()) == facts
    text = cli(
        "compare", "--downstream", copy, "--per-class", "2", "--seeds", 1, "--generated", 5, "-o", "out", "-q"
    ).out
    assert "every difference is undecided" in text and Path("out/copy/downstream.png").is_file()
    assert "that the mixture was trained on" in text


@pytest.mark.further
def test_good_images_help_and_bad_ones_do_not(run, monkeypatch) -> None:
    """The yardstick measures: real images replace the generated ones, then noise does."""
    monkeypatch.setattr("ganherd.compare.downstream.downstream_classifier.STEPS", (30, 30))
    from ganherd.compare.downstream.downstream_classifier import Images
    from ganherd.data.dataset import load
    from ganherd.runs.folder import RunFolder

    data = load(RunFolder(run).recipe.data)
    noise = np.random.default_rng(0).integers(0, 256, data.x.shape).astype(np.uint8)
    request = downstream.DownstreamRequest([1], seeds=1)
    gained = {}
    for name, x in (("real", data.x), ("noise", noise)):
        monkeypatch.setattr(downstream, "_generated", lambda combined, count, seed, x=x: Images(x, data.y))
        rows = downstream.measure_run(run, request)["rows"]
        gained[name] = rows[1]["difference"]["value"]
    assert gained["real"] > 0.1 and gained["noise"] < gained["real"] / 2


def test_downstream_needs_labels_and_runs(cli, run) -> None:
    assert "no run folder nowhere" in cli("compare", "--downstream", "nowhere").sentence
    assert "--budget applies to recipes" in cli("compare", "--downstream", run, "--budget", "3s").sentence
    assert "--per-class 1,x" in cli("compare", "--downstream", run, "--per-class", "1,x").sentence
