"""Recipes of two phases: one command trains what comes first, and then the herd that starts from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run_files
import tiny_runs
import torch
import warm_python
import yaml
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd import report
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.training import session
from ganherd.training.setup import dry_run
from ganherd.training.setup.identity import refuse_changes
from ganherd.training.variants import phases
from ganherd.util.errors import Interrupted, UserError


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    """Three classes that start from one GAN over all of them, which gets three steps of four."""
    data = tiny_data(tmp_path / "data.npz")
    one = tiny_recipe("elsewhere.npz", data={"partition": "all"}, herd={"members": 1}, train={"batch": 16})
    Path("one.yaml").write_text(yaml.safe_dump(one))
    herd = {"first": {"recipe": "one.yaml", "share": 0.75}, "seeds": 2}
    return tiny_recipe(data, herd=herd, train={"budget": "8steps"}, run={"seed": 5})


def bytes_of(run: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(run_files.last_checkpoint(run).glob("*.safetensors"))]


def test_the_first_phase_has_the_herds_data_seeds_engine_and_sizes(recipe: dict[str, Any]) -> None:
    recipe["nets"]["generator"]["width"] = 9
    first, then = phases.before(loaded := recipe_file.load(recipe)), phases.after(loaded, Path("x-first"))
    assert (first.data.source, first.data.partition) == (recipe["data"]["source"], "all")
    assert (first.run.seed, first.herd.seeds, first.herd.members, first.engine) == (5, 2, 1, loaded.engine)
    assert first.nets.generator.settings["width"] == 9
    assert (first.train.batch, first.train.budget, then.train.budget) == (16, "6steps", "2steps")
    assert (then.herd.first, then.herd.start_from, then.nets) == (None, "x-first", loaded.nets)


def test_one_command_is_the_same_as_two(recipe: dict[str, Any]) -> None:
    ganherd.train(recipe, run="run", quiet=True)
    loaded = recipe_file.load(recipe)
    ganherd.train(phases.before(loaded), run="by-hand", quiet=True)
    second = recipe_file.load(recipe, ["herd.first=null", "herd.start_from=by-hand", "train.budget=2steps"])
    ganherd.train(second, run="second", quiet=True)
    assert bytes_of(Path("run-first")) == bytes_of(Path("by-hand"))
    assert bytes_of(Path("run")) == bytes_of(Path("second"))
    assert RunFolder(Path("run")).info.origins[0].path == str(Path("run-first").absolute())
    assert RunFolder(Path("run-first")).info.recipe == "one"


def test_the_report_names_the_steps_and_the_time_of_both_phases(recipe: dict[str, Any]) -> None:
    folder = ganherd.train(recipe, run="run", quiet=True).folder
    folder.write_info(seconds=65.0)
    folder.first.write_info(seconds=605.0)
    text = report.write(folder).read_text()
    assert "for 2 steps in 1 min 5 s, after a first phase of 6 steps in 10 min 5 s." in text
    assert "Members started from the first phase, run-first (step 6)." in text
    shutil.rmtree(folder.first.path)
    text = report.write(folder).read_text()
    assert "after a first phase" not in text and "Members started from run-first (step 6)." in text


def test_stopped_in_the_first_phase_the_same_command_goes_on(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session.Session.run

    def stopped(self: Any) -> Any:
        self.source.recipe = recipe_file.load(self.source.recipe, ["train.budget=3steps"])
        run(self)
        raise Interrupted("stopped by SIGTERM at step 3.")

    ganherd.train(recipe, run="whole", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "run", stopped)
        with pytest.raises(Interrupted, match="the same command with --run run continues"):
            ganherd.train(recipe, run="run", quiet=True)
    assert not Path("run").exists() and RunFolder(Path("run-first")).info.step == 3
    ganherd.train(recipe, run="run", quiet=True)
    assert bytes_of(Path("run")) == bytes_of(Path("whole"))


def test_another_recipe_does_not_take_up_a_first_phase(recipe: dict[str, Any]) -> None:
    ganherd.train(phases.before(recipe_file.load(recipe)), run="run-first", quiet=True)
    recipe["run"]["seed"] = 6
    with pytest.raises(UserError, match="run-first was started with another recipe"):
        ganherd.train(recipe, run="run", quiet=True)


def test_a_run_that_is_there_comes_before_the_first_phase(recipe: dict[str, Any]) -> None:
    ganherd.train(phases.before(recipe_file.load(recipe)), run="there", quiet=True)
    recipe["herd"]["start_from"] = "there"
    ganherd.train(recipe, run="run", quiet=True)
    assert not Path("run-first").exists() and RunFolder(Path("run")).info.step == 8  # all of the budget


def test_without_a_name_both_phases_have_one_number(recipe: dict[str, Any]) -> None:
    ganherd.train(recipe, quiet=True)
    assert sorted(p.name for p in Path("runs").iterdir()) == ["00001-run", "00001-run-first"]


def test_parts_are_refused_before_anything_trains(recipe: dict[str, Any]) -> None:
    loaded = recipe_file.load(recipe)
    with pytest.raises(UserError, match=r"train \S*one.yaml by itself, then all parts with --set herd.start_from=RUN"):
        session.train(loaded, "run", part=range(1))
    assert not Path("run").exists() and not Path("run-first").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            ["nets.generator=mlp", "nets.discriminator=mlp"],
            r"its nets differ \(nets.generator.name: small -> mlp, ",
        ),
        (["herd.members=5"], "has 3 classes"),
        (["herd.first.recipe=five.yaml"], "trains 5 members and this herd has 3"),
        (["herd.grow_from=nothere"], "there is no run folder nothere"),
        (["herd.first.recipe=two.yaml"], "two.yaml has a first phase itself"),
    ],
)
def test_what_is_wrong_with_the_herd_is_said_before_the_first_phase(
    recipe: dict[str, Any], changes: list[str], sentence: str
) -> None:
    five = tiny_recipe("elsewhere.npz", data={"partition": "all"}, herd={"members": 5})
    Path("five.yaml").write_text(yaml.safe_dump(five))
    Path("two.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(UserError, match=sentence):
        ganherd.train(recipe, changes, run="run", quiet=True)
    assert not Path("run-first").exists()


def test_a_herd_without_nets_takes_those_of_the_first_recipe(recipe: dict[str, Any]) -> None:
    wide = tiny_recipe("elsewhere.npz", data={"partition": "all"}, herd={"members": 1}, nets={"latent": 5})
    Path("wide.yaml").write_text(yaml.safe_dump(wide))
    del recipe["nets"]
    ganherd.train(recipe, ["herd.first.recipe=wide.yaml"], run="run", quiet=True)
    assert [RunFolder(Path(run)).recipe.nets.latent for run in ("run-first", "run")] == [5, 5]


@pytest.mark.parametrize("names_nets", [True, False])
def test_layers_that_started_from_the_first_phase_can_be_frozen(recipe: dict[str, Any], names_nets: bool) -> None:
    """FreezeD: only the second phase keeps its discriminators' first layer as it is, and so does a resume."""
    if not names_nets:
        del recipe["nets"]
    first_layer = "nets.frozen=[layers.0]"
    ganherd.train(recipe, [first_layer], run="run", quiet=True)
    assert [RunFolder(Path(run)).recipe.nets.frozen for run in ("run-first", "run")] == [[], ["layers.0"]]
    session.resume("run", ["train.budget=4steps"], quiet=True)
    ganherd.train(
        recipe,
        [first_layer, "herd.first=null", "herd.start_from=run-first", "train.budget=4steps"],
        run="by-hand",
        quiet=True,
    )
    assert bytes_of(Path("run")) == bytes_of(Path("by-hand"))
    begun = run_files.tensors(Path("run/checkpoints/step-00000000"))
    ended = run_files.tensors(run_files.last_checkpoint(Path("run")))
    moved = {key: not torch.equal(value, ended[key]) for key, value in begun.items() if "/d.params/" in key}
    held = [key for key in moved if "/layers.0." in key]
    assert held and not any(moved[key] for key in held) and any(moved.values())


def test_a_prior_is_that_of_both_phases(recipe: dict[str, Any]) -> None:
    ganherd.train(recipe, ["nets.prior=uniform"], run="run", quiet=True)
    assert [RunFolder(Path(run)).recipe.nets.prior for run in ("run-first", "run")] == ["uniform", "uniform"]


def test_the_recipe_of_both_phases_may_stand_beside_a_resume(recipe: dict[str, Any]) -> None:
    Path("two.yaml").write_text(yaml.safe_dump(recipe))
    ganherd.train("two.yaml", run="run", quiet=True)
    folder = RunFolder.open("run")
    refuse_changes(folder.recipe, recipe_file.load("two.yaml"), folder)
    with pytest.raises(UserError, match="run.seed"):
        refuse_changes(folder.recipe, recipe_file.load("two.yaml", ["run.seed=6"]), folder)


def test_a_run_in_its_first_phase_is_told(recipe: dict[str, Any]) -> None:
    ganherd.train(phases.before(recipe_file.load(recipe)), run="run-first", quiet=True)
    with pytest.raises(UserError, match=r"run is in its first phase \(run-first\): .* continues with --run run"):
        RunFolder.open("run")


def test_here_is_a_folder_too() -> None:
    assert RunFolder(Path(".")).first.path == Path.cwd().with_name(f"{Path.cwd().name}-first")


def test_parts_of_a_herd_are_refused_before_anything_is_written(recipe: dict[str, Any]) -> None:
    recipe["herd"]["seeds"] = 1
    Path("two.yaml").write_text(yaml.safe_dump(recipe))
    command = [warm_python.python(), "-m", "ganherd", "train", "two.yaml", "--members", "0-1", "--run", "run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "one.yaml by itself" in done.stderr
    assert not Path("run").exists()


def test_a_dry_run_tells_both_phases(recipe: dict[str, Any]) -> None:
    facts = dry_run.describe(recipe_file.load(recipe))
    assert facts["steps"] == 2
    assert "one.yaml is trained first, for 6steps; the rest is the herd's own" in dry_run.known(facts)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("herd", "sentence"),
    [
        ({"first": {"recipe": "one.yaml", "share": 1}}, "herd.first.share"),
        ({"first": {"recipe": "one.yaml"}}, "herd.first.share"),
        (
            {"first": {"recipe": "one.yaml", "share": 0.5}, "members": [{"from": "there", "member": 0}]},
            "both set what members start from",
        ),
    ],
)
def test_what_cannot_be_is_said(recipe: dict[str, Any], herd: dict[str, Any], sentence: str) -> None:
    recipe["herd"] = herd
    with pytest.raises(UserError, match=sentence):
        recipe_file.load(recipe)


def test_a_first_recipe_that_is_not_there_is_named(recipe: dict[str, Any]) -> None:
    recipe["herd"]["first"]["recipe"] = "onne.yaml"
    with pytest.raises(UserError, match=r"onne.yaml"):
        ganherd.train(recipe, run="run", quiet=True)
    assert not Path("run").exists()


@pytest.mark.further
def test_own_nets_of_the_first_phase_are_found_next_to_its_recipe(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path("elsewhere")
    place.mkdir()
    nets = "from ganherd.nets.mlp import SmallDiscriminator as D, SmallGenerator as G\n"
    (place / "nets_of_phase_one.py").write_text(nets)
    own = {"generator": "nets_of_phase_one:G", "discriminator": "nets_of_phase_one:D"}
    first = tiny_recipe("any.npz", data={"partition": "all"}, herd={"members": 1}, nets=own)
    (place / "first.yaml").write_text(yaml.safe_dump(first))
    recipe["herd"]["first"]["recipe"] = str(place / "first.yaml")
    del recipe["nets"]
    run = ganherd.train(recipe, run="run", quiet=True)
    assert run.folder.recipe.nets.generator.name == "nets_of_phase_one:G"
    assert run.folder.recipe.code == [str(place.absolute())]
    monkeypatch.delitem(sys.modules, "nets_of_phase_one")
    assert len(ganherd.load(run.path, trust_code=True).sample(3).x) == 3
