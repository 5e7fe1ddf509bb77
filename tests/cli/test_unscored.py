"""`run.scores: false`: a run ends with its mixture and its report, and is scored when somebody asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes import tiny_data, tiny_recipe

from ganherd.runs.folder import RunFolder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    made = tiny_recipe(tiny_data(tmp_path / "data.npz"), train={"budget": "2steps"}, run={"scores": False})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(made))
    return tmp_path / "recipe.yaml"


def done(cli, *words: object) -> str:
    answer = cli(*words, "-q")
    assert answer.code == 0, answer
    return answer.out


def scores(run: Path) -> dict[str, Any]:
    return json.loads((run / "scores.json").read_text())["scores"]


def test_a_run_that_is_not_scored_says_how_to(cli, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    out = done(cli, "train", recipe, "--run", run)
    assert f"ganherd score '{run}'" in out and "report" in out
    assert not (run / "scores.json").exists() and (run / "report.html").is_file()
    done(cli, "score", run, "--metrics", "diversity", "-n", 20)
    assert "diversity" in scores(run)


def test_scores_of_an_earlier_step_do_not_stay(cli, recipe: Path, tmp_path: Path) -> None:
    done(cli, "train", recipe, "--run", tmp_path / "run")
    done(cli, "score", tmp_path / "run", "--metrics", "diversity", "-n", 20)
    done(cli, "train", "--resume", tmp_path / "run", "--budget", "4steps")
    assert not (tmp_path / "run" / "scores.json").exists()


def test_a_resumed_run_may_be_scored_after_all(cli, recipe: Path, tmp_path: Path) -> None:
    done(cli, "train", recipe, "--run", tmp_path / "run")
    done(cli, "train", "--resume", tmp_path / "run", "--budget", "4steps", "--set", "run.scores=true")
    assert "fid" in scores(tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").recipe.run.scores
    done(cli, "train", "--resume", tmp_path / "run", "--set", "run.scores=false")
    assert not (tmp_path / "run" / "scores.json").exists()


def test_the_last_part_tells_what_there_is(cli, recipe: Path, tmp_path: Path) -> None:
    first = done(cli, "train", recipe, "--run", tmp_path / "run", "--members", "0")
    last = done(cli, "train", recipe, "--run", tmp_path / "run", "--members", "1-2")
    assert "left are" in first and "picture" in last and f"ganherd score {tmp_path / 'run'}" in last
