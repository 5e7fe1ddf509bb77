"""`run.scores: false`: a run ends with its mixture and its report, and is scored when somebody asks."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from small import small_data, small_recipe


def test_a_run_that_is_not_scored_says_how_to(cli, tmp_path: Path) -> None:
    made = small_recipe(small_data(tmp_path / "data.npz"), train={"budget": "2steps"}, run={"scores": False})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(made))
    run = tmp_path / "run"
    answer = cli("train", tmp_path / "recipe.yaml", "--run", run, "-q")
    assert answer.code == 0, answer
    assert f"ganherd score {run}" in answer.out and "report" in answer.out
    assert not (run / "scores.json").exists() and (run / "report.html").is_file()
    assert cli("score", run, "--metrics", "diversity", "-n", 20, "-q").code == 0
    assert "diversity" in json.loads((run / "scores.json").read_text())["scores"]
