"""`ganherd train --members`: jobs that know nothing of each other fill one run, which is what one process would have made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import recipes
import tiny_runs
import torch

import ganherd
from ganherd.recipe import recipe_file
from ganherd.runs import run_status, status_text
from ganherd.runs.folder import RunFolder
from ganherd.runs.series import sprite_files
from ganherd.training.variants import job_parts
from promises.test_ranks import assert_same_herd
from promises.test_resume import ask_to_stop


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    torch.set_num_threads(1)


@pytest.mark.further
def test_parts_are_joined_to_what_one_process_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, with one part interrupted on the way, and the whole run resumed."""
    settings = {**recipes.noise_recipe(tmp_path), "optim": {"lr_g": [0.01, 0.02, 0.03]}}
    settings["train"] = {**settings["train"], "precision": "float64"}
    recipe, run = recipe_file.load(settings), tmp_path / "run"
    tiny_runs.train(tmp_path / "whole", settings)
    with monkeypatch.context() as patch:
        ask_to_stop(patch, 11)
        with pytest.raises(ganherd.Interrupted, match="parts/001-002"):
            job_parts.train_part(recipe, run, "1-2", quiet=True)
    facts = run_status.describe(run)
    assert facts.state == "parts" and [part.state for part in facts.parts] == ["interrupted"]
    assert "trained in parts" in status_text.text(facts)
    job_parts.train_part(recipe, run, "0", quiet=True)
    assert job_parts.unfinished(RunFolder(run)) == ["1-2 not finished"] and not (run / "mixture").exists()
    assert job_parts.train_part(recipe, run, "1-2", quiet=True).path == run
    assert_same_herd(run, tmp_path / "whole", ("metrics.jsonl",))
    for path in (run, tmp_path / "whole"):
        tiny_runs.resume(path, "36steps")
    assert_same_herd(run, tmp_path / "whole", ("metrics.jsonl",))


@pytest.mark.further
def test_points_of_parts_are_joined(tmp_path: Path) -> None:
    settings = recipes.tiny_recipe(
        "ring8",
        data={"partition": "all"},
        herd={"members": 3},
        train={"budget": "6steps", "precision": "float64"},
        run={"sprites": None},
    )
    settings["nets"] = {"latent": 4, "generator": {"name": "toy"}, "discriminator": {"name": "toy"}}
    tiny_runs.train(tmp_path / "whole", settings)
    for members in ("1-2", "0"):
        job_parts.train_part(recipe_file.load(settings), tmp_path / "run", members, quiet=True)
    names = sorted(path.name for path in (tmp_path / "whole" / "sprites").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "run" / "sprites").iterdir()) and len(names) >= 3
    for name in names:
        joined, whole = (json.loads((tmp_path / run / "sprites" / name).read_text()) for run in ("run", "whole"))
        if name == "index.json":
            assert joined == whole
        else:
            np.testing.assert_allclose(joined, whole, atol=2e-4)


def test_damaged_sprites_of_a_part_are_left_out(tmp_path: Path) -> None:
    recipe, run = recipe_file.load(recipes.write_recipe(tmp_path, budget="6steps", net="tiny")), tmp_path / "run"
    job_parts.train_part(recipe, run, "0", quiet=True)
    (run / "parts" / "000-000" / "sprites" / "step-00000003.webp").write_bytes(b"RIFF")
    job_parts.train_part(recipe, run, "1-2", quiet=True)
    assert list(sprite_files.saved_sheets(run / "sprites")) == [0, 6]


def test_parts_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = recipes.write_recipe(tmp_path, budget="3steps", net="tiny"), tmp_path / "run"

    def refused(*words: object) -> str:
        assert tiny_runs.command("train", recipe, "--quiet", *words) == 2
        return capsys.readouterr().err

    assert "several jobs with the same --run: give it" in refused("--members", "0")
    assert "the herd has 3 members, 0 to 2" in refused("--members", "2-3", "--run", run)
    assert "write 0-9, or 7" in refused("--members", "all", "--run", run)
    assert "whose members never meet" in refused("--members", "0", "--run", run, "--seeds", "2")
    assert not run.exists()
    assert tiny_runs.command("train", recipe, "--quiet", "--members", "0-1", "--run", run) == 0
    assert "left are 2-2 not begun" in capsys.readouterr().out
    assert RunFolder(run).info.recipe == Path(recipe).stem  # not "run"
    assert "have members in common" in refused("--members", "1-2", "--run", run)
    assert "another recipe" in refused("--members", "2", "--run", run, "--set", "train.batch=3")
    assert "have the budget 3steps, not 4steps" in refused("--members", "2", "--run", run, "--budget", "4steps")
    assert "write 0-2" in refused("--members", "2-0", "--run", run)
    assert "leave --members out" in refused("--members", "2", "--run", run, "--dry-run")
    assert tiny_runs.command("train", "--resume", run) == 2
    assert "trained in parts" in capsys.readouterr().err


def test_a_part_that_was_killed_as_it_began_begins_again(tmp_path: Path) -> None:
    """Before its run.json: it hinders neither the others, nor itself."""
    recipe, run = recipe_file.load(recipes.write_recipe(tmp_path, budget="3steps", net="tiny")), tmp_path / "run"
    own = run / "parts" / "000-000"
    job_parts.train_part(recipe, run, "1", quiet=True)
    own.mkdir()
    for name in (".lock", "recipe.yaml", ".new-0123456789abcdef.json"):
        (own / name).touch()
    job_parts.train_part(recipe, run, "2", quiet=True)
    facts = run_status.describe(run)
    assert len(facts.parts) == 2 and facts.left == ["0-0 not finished"]
    assert job_parts.train_part(recipe, run, "0", quiet=True).path == run


def test_a_folder_with_a_recipe_of_the_users_own_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(ganherd.UserError, match="exists already"):
        RunFolder(tmp_path).refuse_existing()


def test_parts_that_ended_at_different_steps_are_not_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Joined they have no checkpoint; a resume must not take that for a run at its beginning."""
    recipe, run = recipe_file.load(recipes.write_recipe(tmp_path, budget="3steps", net="tiny")), tmp_path / "run"
    job_parts.train_part(recipe, run, "0", quiet=True)
    tiny_runs.resume(run / "parts" / "000-000", "5steps")
    job_parts.train_part(recipe, run, "1-2", quiet=True)
    assert RunFolder(run).info.state == "finished" and not (run / "checkpoints").exists()
    for words in (("--budget", "9steps"), ("--retrain", "0")):
        assert tiny_runs.command("train", "--resume", run, *words) == 2
        assert "not trained further" in capsys.readouterr().err
