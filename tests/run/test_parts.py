"""`ganherd train --members`: jobs that know nothing of each other fill one run, which is what one process would have made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ganherd
import little
from ganherd import recipe_file
from ganherd.run import parts, status
from ganherd.run.folder import RunFolder
from promises.test_ranks import assert_same_herd
from promises.test_resume import ask_to_stop


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    little.be_brief(monkeypatch)
    yield
    torch.set_num_threads(1)


def test_parts_are_joined_to_what_one_process_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, one of them stopped on the way, and the whole gone on with."""
    settings = {**little.recipe(tmp_path), "optim": {"lr_g": [0.01, 0.02, 0.03]}}
    settings["train"] = {**settings["train"], "precision": "float64"}
    recipe, run = recipe_file.load(settings), tmp_path / "run"
    little.train(tmp_path / "whole", settings)
    with monkeypatch.context() as patch:
        ask_to_stop(patch, 11)
        with pytest.raises(ganherd.Interrupted, match="parts/001-002"):
            parts.train_part(recipe, run, "1-2", quiet=True)
    facts = status.describe(run)
    assert facts["state"] == "parts" and [part["state"] for part in facts["parts"]] == ["interrupted"]
    assert "trained in parts" in status.text(facts)
    parts.train_part(recipe, run, "0", quiet=True)
    assert parts.unfinished(RunFolder(run)) == ["1-2 not finished"] and not (run / "mixture").exists()
    assert parts.train_part(recipe, run, "1-2", quiet=True).path == run
    assert_same_herd(run, tmp_path / "whole", ("metrics.jsonl",))
    for path in (run, tmp_path / "whole"):
        little.resume(path, "36steps")
    assert_same_herd(run, tmp_path / "whole", ("metrics.jsonl",))


def test_parts_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = little.write_recipe(tmp_path, budget="3steps", net="tiny"), tmp_path / "run"

    def refused(*words: object) -> str:
        assert little.command("train", recipe, "--quiet", *words) == 2
        return capsys.readouterr().err

    assert "fill the same --run: give that" in refused("--members", "0")
    assert "the herd has 3 members, 0 to 2" in refused("--members", "2-3", "--run", run)
    assert "write 0-9, or 7" in refused("--members", "all", "--run", run)
    assert "whose members never meet" in refused("--members", "0", "--run", run, "--seeds", "2")
    assert not run.exists()
    assert little.command("train", recipe, "--quiet", "--members", "0-1", "--run", run) == 0
    assert "left are 2-2 not begun" in capsys.readouterr().out
    assert "have members in common" in refused("--members", "1-2", "--run", run)
    assert "another recipe" in refused("--members", "2", "--run", run, "--set", "train.batch=3")
