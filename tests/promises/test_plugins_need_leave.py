"""Promise 5: a run folder that names plug-ins of installed packages, or objects of modules, imports none without leave."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed_plugins import importable, write_package
from recipes import tiny_recipe
from run_fixtures import Answer

import ganherd
from ganherd import UserError
from ganherd.util.registry import METRICS

Cli = Callable[..., Answer]
GROUPS = ("strategies", "losses", "generators", "discriminators", "metrics", "data_sources", "augmentations", "engines")
KEYS = {  # a key of a recipe, and what a hostile folder writes there
    "loss.name": "NAME",
    "herd.trials": [{"loss.name": "NAME"}, {"loss.name": "hinge"}],
    "strategy": {"name": "NAME", "NAME": {"every": "3steps"}},
    "data.source": "NAME",
    "nets.generator": {"name": "NAME", "settings": {"width": 3}},
    "nets.discriminator": {"name": "NAME", "settings": {}},
    "train.augment": ["NAME"],
    "engine.name": "NAME",
    "run.metrics": [{"name": "NAME", "width": 3}],
}
COMMANDS = {
    "resume": ("train", "--resume", "RUN", "--budget", "9steps", "--quiet"),
    "train": ("train", "RUN/recipe.yaml", "--run", "new", "--quiet"),
    "sample": ("sample", "RUN", "-n", "4", "-o", "x.npz"),
    "score": ("score", "RUN", "--metrics", "diversity", "-n", "20", "--quiet"),
    "status": ("status", "RUN"),
    "runs": ("runs", "."),
}


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is installed, announces entries of every kind and writes a file when it is imported."""
    site, victim = tmp_path / "site", tmp_path / "victim"
    site.mkdir()
    code = f"open({str(victim)!r}, 'w').write('imported')\n"
    write_package(site, "evil_plugin", code, {f"ganherd.{group}": ["evil"] for group in GROUPS})
    with importable(site, monkeypatch):
        yield victim
    assert not victim.exists(), "a plug-in that a run folder names was imported"


def changed(folder: Path, key: str, value: Any, name: str) -> None:
    """Set a key of the folder's recipe, given with dots; NAME in the value becomes the name."""
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    *outer, last = key.split(".")
    section = recipe
    for part in outer:
        section = section[part]
    section[last] = json.loads(json.dumps(value).replace("NAME", name))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


@pytest.mark.parametrize("name", ["evil", "evil_plugin:entry"])
@pytest.mark.parametrize("key", KEYS)
def test_a_run_folder_gives_no_leave(cli: Cli, run: Path, evil: Path, key: str, name: str) -> None:
    folder = Path(shutil.copytree(run, "hostile"))
    changed(folder, key, KEYS[key], name)
    for command, words in COMMANDS.items():
        answer = cli(*(word.replace("RUN", "hostile") for word in words))
        assert "Traceback" not in answer.err and "evil_plugin" not in sys.modules
        if command == "train":
            assert "belongs to a run and names" in answer.sentence and "give --trust-code" in answer.sentence
        if command == "resume" and key not in ("engine.name", "run.metrics"):  # that of run.json counts; left out
            assert "is code that is not ganherd's: give --trust-code" in answer.sentence
        if command == "sample" and key != "nets.generator":
            assert answer.code == 0, "samples need the generators only"
        if command in ("status", "runs"):
            assert answer.code == 0
    if key != "nets.generator":
        assert len(ganherd.Run("hostile").sample(2).x) == 2 and "evil_plugin" not in sys.modules


def test_names_in_scores_import_nothing(cli: Cli, run: Path, evil: Path) -> None:
    folder = Path(shutil.copytree(run, "hostile"))
    entry = {"value": 1.0, "samples": 9, "network": "", "seed": 0, "replica": 0}
    (folder / "scores.json").write_text(json.dumps({"scores": {"evil": entry, "evil_plugin:entry": entry}}))
    for words in (("status", folder), ("report", folder, "--quiet"), ("compare", folder, folder, "-q")):
        assert "Traceback" not in cli(*words).err
    assert METRICS.get("evil") is None and "evil_plugin" not in sys.modules


def test_metrics_of_a_run_folder_are_left_out_of_its_scores(cli: Cli, run: Path, evil: Path) -> None:
    folder = Path(shutil.copytree(run, "hostile"))
    changed(folder, "run.metrics", [{"name": "NAME", "width": 3}, "memorisation"], "evil")
    scores = json.loads(cli("score", folder, "-n", 20, "--quiet", "--json").out)["scores"]
    assert "fid" in scores and "memorisation" in {*scores, *scores["skipped"]}
    assert "is code that is not ganherd's: give --trust-code" in scores["skipped"]["evil"]


def test_the_mixture_of_a_run_gives_no_leave(run: Path, tmp_path: Path, evil: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "hostile"))
    facts = json.loads((folder / "mixture" / "mixture.json").read_text())
    facts["generator"] = {"name": "evil", "settings": {}}
    (folder / "mixture" / "mixture.json").write_text(json.dumps(facts))
    with pytest.raises(
        UserError, match="the generator 'evil' of the package evil_plugin is code that is not ganherd's"
    ):
        ganherd.load(folder)


# -- leave ----------------------------------------------------------------------------------------------------------------

HONEST = """
import ganherd

@ganherd.register.loss("honest")
class Honest:
    def d(self, real, fake):
        return (fake - real).mean(-1)

    def g(self, fake):
        return -fake.mean(-1)

@ganherd.register.strategy("still")
class Still(ganherd.register.Strategy):
    "members never meet"
"""


@pytest.fixture
def honest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    site.mkdir()
    write_package(site, "honest_plugin", HONEST, {"ganherd.losses": ["honest"], "ganherd.strategies": ["still"]})
    with importable(site, monkeypatch):
        yield site


def test_the_users_recipe_and_the_flag_give_leave(
    cli: Cli, data: Path, honest: Path, monkeypatch: pytest.MonkeyPatch, brief: None
) -> None:
    sections = {"loss": {"name": "honest"}, "data": {"partition": "all"}, "strategy": {"name": "still"}}
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data, **sections)))
    assert cli("train", "own.yaml", "--run", "new", "--quiet").code == 0
    (recorded,) = [one for one in json.loads(Path("new/run.json").read_text())["plugins"] if one["kind"] == "loss"]
    assert (recorded["package"], recorded["version"], recorded["module"]) == ("honest_plugin", "1.0", "honest_plugin")
    assert len(recorded["sha256"]) == 64
    forget(honest, monkeypatch)
    more = ("train", "--resume", "new", "--budget", "9steps")
    assert "give --trust-code" in cli(*more, "--quiet").sentence and "honest_plugin" not in sys.modules
    (honest / "honest_plugin.py").write_text(HONEST + "# a new version\n")
    answer = cli(*more, "--trust-code")
    assert answer.code == 0 and "note: the code of the loss honest has changed since the run was started" in answer.err


def test_quiet_does_not_mute_the_note_about_changed_code(
    cli: Cli, data: Path, honest: Path, monkeypatch: pytest.MonkeyPatch, brief: None
) -> None:
    sections = {"loss": {"name": "honest"}, "data": {"partition": "all"}}
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data, **sections)))
    assert cli("train", "own.yaml", "--run", "new", "--quiet").err == ""
    forget(honest, monkeypatch)
    (honest / "honest_plugin.py").write_text(HONEST + "# a new version\n")
    answer = cli("train", "--resume", "new", "--budget", "9steps", "--trust-code", "--quiet")
    assert answer.code == 0
    assert answer.err == "note: the code of the loss honest has changed since the run was started.\n"


def forget(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the plug-in, as a new process would."""
    from installed_plugins import ALL

    for one in ALL:
        for name in [name for name in one if not one.is_own(name)]:
            one.unregister(name)
        one._vouched.clear()
    sys.modules.pop("honest_plugin", None)


def test_a_missing_plugin_is_named_with_its_package(
    cli: Cli, data: Path, honest: Path, monkeypatch: pytest.MonkeyPatch, brief: None
) -> None:
    sections = {"loss": {"name": "honest"}, "data": {"partition": "all"}, "strategy": {"name": "still"}}
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data, **sections)))
    assert cli("train", "own.yaml", "--run", "new", "--quiet").code == 0
    forget(honest, monkeypatch)
    shutil.rmtree(honest / "honest_plugin-1.0.dist-info")
    monkeypatch.syspath_prepend(str(honest / "nothing"))
    message = cli("train", "--resume", "new", "--budget", "9steps", "--quiet", "--trust-code").sentence
    assert "comes from the package honest_plugin, which is not installed here: install it" in message
    assert cli("sample", "new", "-n", 4, "-o", "x.npz").code == 0, "samples need the generators only"
    assert "there is no loss 'honest'" in cli("train", "own.yaml", "--run", "other", "--quiet").sentence
