"""Recipes that extend others, and the packaged families: every name resolves to the recipe that it always was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ganherd.recipe import preset_texts
from ganherd.recipe.recipe_file import dump, load, names, text, up_to_date
from ganherd.recipe.schema import Recipe
from ganherd.recipe.trust import check_recipe
from ganherd.util.errors import UserError
from ganherd.util.registry import STRATEGIES

STORED = json.loads(Path(__file__).with_name("preset_digests.json").read_text())  # of the time before families


# Settings of nets that came later, with the value by which they change nothing.
LATER = {"packing": 1, "minibatch_std": 0, "growth": 8, "smallest": 4, "flat_blocks": 0}


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "settings" and isinstance(value, dict):
            value = {name: one for name, one in value.items() if name not in LATER or one != LATER[name]}
        deeper = isinstance(value, dict) and value and key not in ("settings", "weights", "first")
        values |= flat(value, f"{prefix}{key}.") if deeper else {prefix + key: value}
    return values


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Return all values of a recipe by key, with the defaults of the strategies that it does not use."""
    data = recipe.model_dump()
    for spec in STRATEGIES.values():
        data["strategy"].setdefault(spec.section, spec.settings().model_dump())
    return flat(data)


def digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([values[key] for key in STORED["keys"]]).encode()).hexdigest()


@pytest.mark.parametrize("name", STORED["digests"])
def test_a_packaged_name_gives_the_recipe_that_it_always_gave(name: str) -> None:
    assert digest(resolved(load(name))) == STORED["digests"][name]


def test_no_name_was_lost() -> None:
    assert set(STORED["digests"]) <= {name for name, _ in names()}
    assert len(list(Path(preset_texts.__file__).with_name("presets").glob("*.yaml"))) <= 25


@pytest.mark.parametrize("name", [name for name, _ in names()])
def test_the_printed_recipe_is_complete(name: str, tmp_path: Path) -> None:
    printed = text(name)
    (tmp_path / "printed.yaml").write_text(printed)
    assert "extends:" not in printed and "null" not in printed.replace("herd.first=null", "")
    assert load(tmp_path / "printed.yaml") == load(name)
    assert printed.startswith(f"# {preset_texts.first_line(name)}\n")


@pytest.mark.parametrize("name", [name for name, _ in names()])
def test_a_family_written_as_files_gives_the_same_recipes(name: str, tmp_path: Path) -> None:
    """Texts and data are merged by two functions."""
    (tmp_path / "own").write_text(preset_texts._presets()[name])
    assert load(tmp_path / "own") == load(name)


@pytest.mark.parametrize("name", ["digits-wcgan", "mnist-gap-d4", "ring8-cellular-3x3"])
def test_a_recipe_that_lists_the_settings_of_all_strategies_is_read(name: str, tmp_path: Path) -> None:
    """Run folders of earlier versions have such a recipe.yaml."""
    data = load(name).model_dump()
    for spec in STRATEGIES.values():
        data["strategy"].setdefault(spec.section, spec.settings().model_dump())
    (tmp_path / "recipe.yaml").write_text(json.dumps(data))
    assert load(tmp_path / "recipe.yaml") == load(name)
    assert up_to_date(data) == load(name).model_dump(mode="json")


# -- recipes of users --------------------------------------------------------------------------------------------------


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


def test_keys_merge_and_null_removes(tmp_path: Path) -> None:
    recipe = load(
        write(tmp_path, "a.yaml", "extends: digits-wcgan\ntrain: {batch: 16, ema: null}\noptim:\n  lr_g: 1e-3\n")
    )
    base = load("digits-wcgan")
    assert (recipe.train.batch, recipe.train.ema, recipe.train.n_critic) == (16, None, base.train.n_critic)
    assert (recipe.optim.lr_g, recipe.optim.lr_d) == (1e-3, base.optim.lr_d)
    assert recipe.about == "" and recipe.run == base.run


def test_a_named_net_replaces_the_net_and_a_setting_changes_it(tmp_path: Path) -> None:
    one = load(write(tmp_path, "a.yaml", "extends: ring8-gap4\nnets: {discriminator: {width: 32}}\n"))
    assert one.nets.discriminator.settings == load("ring8-gap4").nets.discriminator.settings | {"width": 32}
    other = load(write(tmp_path, "b.yaml", "extends: ring8-gap4\nnets: {discriminator: mlp}\n"))
    assert other.nets.discriminator.name == "mlp" and "width" not in other.nets.discriminator.settings


def test_a_strategy_of_another_name_replaces_the_strategy(tmp_path: Path) -> None:
    file = write(
        tmp_path, "a.yaml", "extends: ring8-gap4\nherd: null\nstrategy: {name: cellular, cellular: {grid: [2, 2]}}\n"
    )
    assert load(file).members == 4 and load(file).strategy.name == "cellular"
    kept = load(write(tmp_path, "b.yaml", "extends: ring8-gap4\nstrategy: {gap: {every: 3steps}}\n")).strategy
    assert kept.model_dump()["gap"] == load("ring8-gap4").strategy.model_dump()["gap"] | {"every": "3steps"}
    assert load(write(tmp_path, "c.yaml", "extends: ring8-gap4\nstrategy: null\n")).strategy == Recipe().strategy


def test_files_extend_files_relative_to_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path, "base.yaml", "extends: digits-wcgan\ntrain: {batch: 16}\n")
    write(tmp_path / "deep", "middle.yaml", "extends: ../base.yaml\noptim: {lr_g: 1e-3}\n")
    top = write(tmp_path, "top.yaml", "extends: deep/middle.yaml\nrun: {seed: 3}\n")
    monkeypatch.chdir("/")
    recipe = load(top, ["train.n_critic=2"])
    assert (recipe.train.batch, recipe.optim.lr_g, recipe.run.seed, recipe.train.n_critic) == (16, 1e-3, 3, 2)
    assert load({"extends": str(top), "run": {"seed": 4}}).run.seed == 4


def said(file: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(file, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{file.parent}/", "")


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    write(tmp_path, "b.yaml", "# no comment\nextends: a.yaml\n")
    assert said(tmp_path / "a.yaml") == "a.yaml line 1: extends: it leads back to itself: a.yaml > b.yaml > a.yaml"


def test_mistakes_name_the_file_and_the_line(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "\nextends: digits-wcgan\ntrain:\n  batch: 0\n")
    assert said(write(tmp_path, "a.yaml", "extends: base.yaml\n")).startswith("base.yaml line 4: train.batch must be")
    assert said(write(tmp_path, "b.yaml", "extends: base.yaml\ntrain:\n  batch: -1\n")).startswith(
        "b.yaml line 3: train.batch"
    )
    assert said(tmp_path / "a.yaml", "train.batch=x").startswith("--set train.batch=x: train.batch must be")
    assert said(write(tmp_path, "c.yaml", "extends: digts-wcgan\n")).endswith("did you mean 'digits-wcgan'?")
    assert said(write(tmp_path, "d.yaml", "\nextends: [ring8]\n")).startswith("d.yaml line 2: extends must be the name")
    assert (
        said(write(tmp_path, "e.yaml", "extend: ring8\n"))
        == "e.yaml line 1: unknown key 'extend'; did you mean 'extends'?"
    )
    conflict = write(tmp_path, "f.yaml", "extends: ring8-gap4\ndata:\n  partition: by-class\n")
    assert said(conflict).startswith("f.yaml line 3: strategy.name gap lets members meet")


def test_a_run_keeps_the_complete_recipe(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, "a.yaml", "extends: digits-wcgan\ntrain: {batch: 16}\n"))
    assert "extends" not in dump(recipe)
    write(tmp_path, "run.json", "{}")
    assert said(tmp_path / "a.yaml") == "a.yaml line 1: extends cannot be used here: the recipe of a run is complete"


def test_code_of_an_extended_run_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", "run.json", "{}")
    write(tmp_path / "run", "recipe.yaml", "nets: {generator: evil.nets:Net}\n")
    file = write(tmp_path, "mine.yaml", "extends: run/recipe.yaml\n")
    with pytest.raises(UserError, match="names evil.nets:Net, which is code that is not ganherd's"):
        check_recipe(load(file), file, trust_code=False)
    check_recipe(load(file), file, trust_code=True)
