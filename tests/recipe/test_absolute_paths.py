"""A run can be used from any folder: the paths that its recipe names are absolute, and its own modules are found again."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
from recipes import tiny_data, tiny_recipe
from run_fixtures import Answer

import ganherd
from ganherd.api import PictureFinisher, ReportFinisher, ScoreFinisher
from ganherd.cli.train_command import TrainCommand
from ganherd.comm.backends.local import Local
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.training.finish import TrainedRun
from ganherd.util.errors import UserError

NETS = """
import math
from torch import nn

class MyGenerator(nn.Module):
    def __init__(self, shape, latent):
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(latent, math.prod(shape))

    def forward(self, z):
        return self.layer(z).tanh().reshape(-1, *self.shape)

class MyDiscriminator(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), 1)

    def forward(self, x):
        return self.layer(x.flatten(1))
"""
GRID = {
    "data": {"partition": "all"},
    "strategy": {"name": "cellular", "cellular": {"mixing": {"network": "there.pt#sha256=0a"}}},
}
OWN = {"generator": "nets_of_paths:MyGenerator", "discriminator": "nets_of_paths:MyDiscriminator", "latent": 4}


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    sys.modules.pop("nets_of_paths", None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, a recipe that names it relative to the folder, and another folder to go to."""
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    tiny_data(tmp_path / "project" / "data.npz")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def written(path: Path, **sections: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(tiny_recipe("data.npz", **sections)))
    return path


# --- the data -------------------------------------------------------------------------------------------------------


def test_a_run_on_relative_data_is_resumed_and_scored_from_elsewhere(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finishers = (PictureFinisher(), ScoreFinisher(), ReportFinisher())
    run = ganherd.train(tiny_recipe("data.npz"), run="run", quiet=True)
    assert RunFolder(run.path).recipe.data.source == str(project / "data.npz")
    monkeypatch.chdir(project.parent / "elsewhere")
    ganherd.resume("../project/run", ["train.budget=8steps"], quiet=True, finishers=finishers)
    from ganherd.scoring import score_run

    assert score_run(run.path, ["histogram"], samples=20)["histogram"]["samples"] == 20


def test_the_same_recipe_file_resumes_its_run(project: Path) -> None:
    from ganherd.training.setup.identity import refuse_changes

    recipe = written(project / "mine.yaml")
    run = ganherd.train(recipe, run="run", quiet=True)
    refuse_changes(run.folder.recipe, recipe_file.load(recipe), run.folder)
    tiny_runs.resume(run.path, "8steps")


def test_moved_data_is_one_sentence_with_the_way_out_that_works(project: Path) -> None:
    run = ganherd.train(tiny_recipe("data.npz"), run="run", quiet=True)
    shutil.move("data.npz", "moved.npz")
    with pytest.raises(
        UserError, match="data.npz' is neither .* if it was moved, name its new place.* in the run's recipe.yaml"
    ):
        ganherd.resume(run.path, ["train.budget=8steps"], quiet=True)
    text = run.folder.recipe_path.read_text()
    run.folder.recipe_path.write_text(text.replace("data.npz", "moved.npz"))
    ganherd.resume(run.path, ["train.budget=8steps"], quiet=True)
    assert run.folder.info.step == 8


def test_an_older_run_says_what_its_relative_path_is_relative_to(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ganherd.train(tiny_recipe("data.npz"), run="run", quiet=True)
    text = run.folder.recipe_path.read_text()
    run.folder.recipe_path.write_text(text.replace(str(project / "data.npz"), "data.npz"))
    ganherd.resume(run.path, ["train.budget=8steps"], quiet=True)  # where it was trained
    monkeypatch.chdir(project.parent / "elsewhere")
    with pytest.raises(UserError, match="relative to the folder in which the run was trained"):
        ganherd.resume(run.path, ["train.budget=10steps"], quiet=True)


# --- every key that holds a path ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ({"data": {"source": "there"}}, "data.source"),
        ({"data": {"source": "~/there"}}, "data.source"),
        ({"herd": {"start_from": "there"}}, "herd.start_from"),
        ({"herd": {"grow_from": "there"}}, "herd.grow_from"),
        ({"herd": {"members": [{"from": "there", "member": 0}]}}, "herd.members"),
        ({"herd": {"first": {"recipe": "there", "share": 0.5}}}, "herd.first"),
        ({"code": ["there"]}, "code"),
        (GRID, "strategy.cellular.mixing.network"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_relative_path_is_written_out(
    recipe: dict[str, Any], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("there", "there.pt"):
        (tmp_path / name).touch()
    value: Any = recipe_file.load(recipe)
    for part in key.split("."):
        value = getattr(value, part)
    assert str(tmp_path / "there") in str(value) and "'there" not in str(value) and "~" not in str(value)


@pytest.mark.parametrize("name", ["digits", "mnist", "ring8"])
def test_a_name_stays_a_name_whatever_lies_here(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for other in (name, "digits-wcgan", "inception"):
        (tmp_path / other).mkdir()
    mixing = {"name": "cellular", "cellular": {"mixing": {"network": "inception"}}}
    recipe = recipe_file.load({"data": {"source": name, "partition": "all"}, "strategy": mixing})
    assert recipe.data.source == name and recipe.strategy.cellular.mixing.network == "inception"
    first = recipe_file.load({"herd": {"first": {"recipe": "digits-wcgan", "share": 0.5}}}).herd.first
    assert first is not None and first.recipe == "digits-wcgan"


def test_pathlib_paths_are_taken_wherever_text_is(tmp_path: Path) -> None:
    recipe = recipe_file.load(
        {"data": {"source": tmp_path}, "herd": {"members": [{"from": tmp_path, "member": 0}]}, "code": [tmp_path]}
    )
    assert recipe.data.source == str(tmp_path) and recipe.code == [str(tmp_path)]
    assert isinstance(recipe.herd.members, list) and recipe.herd.members[0].run == str(tmp_path)


def test_the_path_of_a_run_is_absolute(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ganherd.train(tiny_recipe("data.npz"), run="run", quiet=True)
    assert run.path == project / "run"
    monkeypatch.chdir("/")
    assert ganherd.load(run.path).sample(2).x.shape == (2, 1, 8, 8)


# --- modules of the user's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [True, False], ids=["beside the recipe", "in the current folder"])
def test_own_nets_are_found_and_found_again_from_elsewhere(
    project: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    recipe = written(project / "recipes" / "mine.yaml", nets=OWN)
    ((recipe.parent if beside else project) / "nets_of_paths.py").write_text(NETS)
    run = ganherd.train(recipe, run="run", quiet=True)
    sys.modules.pop("nets_of_paths")
    monkeypatch.chdir(project.parent / "elsewhere")
    assert ganherd.load(run.path, trust_code=True).sample(2).x.shape == (2, 1, 8, 8)
    sys.modules.pop("nets_of_paths")
    ganherd.resume(run.path, ["train.budget=8steps"], quiet=True, trust_code=True)
    sys.modules.pop("nets_of_paths")
    with pytest.raises(UserError, match="give --trust-code"):
        ganherd.load(run.path)
    assert "nets_of_paths" not in sys.modules


def test_own_nets_of_a_mapping_are_found_again_from_elsewhere(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "nets_of_paths.py").write_text(NETS)
    run = ganherd.train(tiny_recipe("data.npz", nets=OWN), run="run", quiet=True)
    sys.modules.pop("nets_of_paths")
    monkeypatch.chdir(project.parent / "elsewhere")
    assert ganherd.load(run.path, trust_code=True).sample(2).x.shape == (2, 1, 8, 8)


def test_a_module_that_is_nowhere_is_one_sentence_that_says_where_was_looked(
    project: Path, cli: Callable[..., Answer]
) -> None:
    recipe = written(project / "recipes" / "mine.yaml", nets=OWN, data={"source": str(project / "data.npz")})
    said = cli("train", recipe, "--dry-run").sentence
    assert "No module named 'nets_of_paths'; it is neither installed nor in" in said
    assert str(recipe.parent) in said and os.getcwd() in said


def test_another_module_of_the_same_name_is_refused_and_not_taken_silently(project: Path) -> None:
    for name in ("one", "two"):
        written(project / name / "mine.yaml", nets=OWN)
        (project / name / "nets_of_paths.py").write_text(f"# {name}\n{NETS}")
    ganherd.train(project / "one" / "mine.yaml", run="first", quiet=True)
    with pytest.raises(UserError, match=r"has imported .*one.nets_of_paths.py under the same name; rename .*two"):
        ganherd.train(project / "two" / "mine.yaml", run="second", quiet=True)


def test_a_module_in_a_run_folder_is_not_taken_for_one_beside_a_recipe(project: Path) -> None:
    (project / "nets_of_paths.py").write_text(NETS)
    run = ganherd.train(tiny_recipe("data.npz", nets=OWN), run="run", quiet=True)
    older = run.folder.recipe.model_copy(update={"code": []})
    run.folder.recipe_path.write_text(recipe_file.dump(older))
    (run.path / "nets_of_paths.py").write_text("raise RuntimeError('a stranger')\n")
    sys.modules.pop("nets_of_paths")
    assert run.folder.recipe.code == []
    assert np.isfinite(ganherd.load(run.path, trust_code=True).sample(2).x).all()


# -- a launcher that starts the command again ---------------------------------------------------------------------------


def started_again(monkeypatch: pytest.MonkeyPatch, recipe: Path, resume: Path | None = None) -> TrainedRun:
    """The same command as a rank that torchrun has started for the second time, in a process that has imported nothing."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    sys.modules.pop("nets_of_paths", None)
    return _train(None if resume else recipe, resume)


def _train(recipe: Path | None, resume: Path | None = None) -> TrainedRun:
    """Train quietly in the folder `run`, as a rank of a job."""
    given = str(recipe) if recipe else None
    command = TrainCommand(given, Path("run"), resume, [], trust_code=False, as_json=False, verbose=False, quiet=True)
    return command.train(Local())


def test_a_restart_by_the_launcher_trusts_the_code_that_the_recipe_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = written(project / "recipes" / "mine.yaml", nets=OWN)
    (project / "nets_of_paths.py").write_text(NETS)
    run = _train(recipe)
    assert started_again(monkeypatch, recipe).path == run.path
    with pytest.raises(UserError, match="give --trust-code"):  # without a recipe of the user's that vouches for it
        started_again(monkeypatch, recipe, resume=run.path)


@pytest.mark.parametrize("what", ["module", "folder"])
def test_a_restart_by_the_launcher_trusts_no_other_code(
    what: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = written(project / "recipes" / "mine.yaml", nets=OWN)
    (project / "nets_of_paths.py").write_text(NETS)
    run = _train(recipe)
    (project / "other").mkdir()
    stranger = "raise RuntimeError('a stranger')\n"
    if what == "module":
        (project / "strange_nets.py").write_text(stranger)
        changed = run.folder.recipe_path.read_text().replace("nets_of_paths:MyG", "strange_nets:MyG")
    else:
        (project / "other" / "nets_of_paths.py").write_text(stranger)
        changed = run.folder.recipe_path.read_text().replace(f"[{project}]", f"[{project / 'other'}]")
    assert changed != run.folder.recipe_path.read_text()
    run.folder.recipe_path.write_text(changed)
    with pytest.raises(UserError, match="give --trust-code"):
        started_again(monkeypatch, recipe)
