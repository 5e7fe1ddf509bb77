"""`ganherd data inspect --recommend` names a recipe that exists, reads the data and trains on it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from recipes import LABELS, tiny_recipe

from ganherd import recommend
from ganherd.recipe import recipe_file
from ganherd.recommend import RULES, Choice, DataSummary, choose, overrides


def look(
    source: str = "folder", side: int = 64, classes: int = 10, fewest: int = 5000, gpu: bool = True
) -> DataSummary:
    return DataSummary(source, "images" if side else "points", side, classes, fewest * max(classes, 1), fewest, gpu)


def test_every_recipe_of_the_rules_is_packaged() -> None:
    there = {name for name, _ in recipe_file.names()}
    assert {rule.recipe for rule in RULES} <= there


CASES = [
    (look("ring8", 0), "ring8", ""),
    (look("grid25", 0, gpu=False), "grid25", ""),
    (look("points.csv", 0, classes=0, fewest=300), "r15", ""),
    (look("points.csv", 0, classes=0, fewest=30_000), "ring8", ""),
    (replace(look("table.csv", 0), kind="rows"), "wine-wcgan", ""),
    (replace(look("breast_cancer", 0), kind="rows"), "breast-cancer-wcgan", ""),
    (look("digits", 8, gpu=False), "digits-wcgan", ""),
    (look("mine.npz", 12), "digits-wcgan", ""),
    (look("mnist", 28), "mnist-wcgan", ""),
    (look("stacked-mnist", 28, 1000, 60), "stacked-mnist-gap4", ""),
    (look("cifar10", 32), "cifar10-perclass", ""),
    (look("cifar100", 32, 100, 500), "cifar100-perclass", ""),
    (look("cifar10", 32, gpu=False), "folder-perclass-small", ""),
    (look("photos", 64), "folder-perclass", ""),
    (look("photos", 128, fewest=80), "folder-perclass", "folder-all"),
    (look("photos", 500, classes=0), "folder-perclass", ""),
    (look("photos", 500, gpu=False), "folder-perclass-small", ""),
]


@pytest.mark.parametrize(("seen", "recipe", "first"), CASES, ids=lambda value: str(value)[:40])
def test_the_recipe_for_each_kind_of_data(seen: DataSummary, recipe: str, first: str) -> None:
    rule = choose(seen)
    assert (rule.recipe, rule.two_phases) == (recipe, bool(first))
    packaged = recipe_file.load(recipe)
    sets = overrides(rule, seen, packaged, [], prepared=False)
    words = shlex.split(Choice(seen, recipe, rule.why, tuple(sets), ()).command)
    assert words[:3] == ["ganherd", "train", recipe]
    loaded = recipe_file.load(recipe, [after for word, after in pairwise(words) if word == "--set"])
    assert loaded.data.source == seen.source or packaged.data.source == seen.source
    assert seen.classes or loaded.data.partition != "by-class"
    if first:
        assert loaded.herd.first is not None and loaded.herd.first.recipe == first
        assert recipe_file.load(first).data.partition == "all"


def test_sizes() -> None:
    def size(side: int, prepared: bool = False, given: tuple[str, ...] = ()) -> list[str]:
        seen = look("photos", side)
        sets = overrides(choose(seen), seen, recipe_file.load("folder-perclass"), given, prepared)
        return [one for one in sets if one.startswith("data.size")]

    chosen = {side: size(side) for side in (30, 32, 100, 500)}
    assert chosen == {30: ["data.size=32"], 32: ["data.size=32"], 100: ["data.size=64"], 500: ["data.size=128"]}
    assert size(64, prepared=True) == ["data.size=null"]
    assert size(48, given=("data.size=48",)) == ["data.size=48"]


def test_the_command(cli, data) -> None:
    found = json.loads(cli("data", "inspect", data, "--recommend", "--json").out)["recommend"]
    assert found["recipe"] == "digits-wcgan" and found["members"] == len(LABELS)
    assert found["commands"] == [f"ganherd train digits-wcgan --set data.source={data}"]
    assert found["memory_bytes"] > 0 and found["seconds"] > 0
    assert "3 of 3 classes have fewer than 100 images (zero, one, 2)" in found["notes"][0]
    assert "recommend" not in json.loads(cli("data", "inspect", data, "--json").out)


@pytest.fixture
def pictures(tmp_path) -> Path:
    """A folder of few small images in three classes."""
    random = np.random.default_rng(0)
    for k in range(36):
        path = tmp_path / "pictures" / "abc"[k % 3] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (24, 24, 3), np.uint8)).save(path)
    return tmp_path / "pictures"


def test_few_images_get_steps_enough_and_the_time_of_these(cli, pictures, monkeypatch) -> None:
    measured = {"members": 3, "seconds": 1.5, "engine": "fused", "steps": 25}
    measured |= {f"{what}_bytes": 1 for what in ("state", "training", "data")}
    asked = []
    monkeypatch.setattr("ganherd.training.setup.dry_run.describe", lambda recipe: asked.append(recipe) or measured)
    found = json.loads(cli("data", "inspect", pictures, "--recommend", "--json").out)["recommend"]
    steps = "--set train.budget=2000steps"
    assert found["commands"] == [f"ganherd train mnist-wcgan --set data.source={pictures} {steps}"]
    assert asked[-1].train.budget == "2000steps"  # the time is that of these
    assert found["notes"][-1] == "50epochs, which the recipe has, would be 17 steps of this data: hence 2,000"
    monkeypatch.setattr(recommend, "_steps", lambda recipe: 3400)
    found = json.loads(cli("data", "inspect", pictures, "--recommend", "--json").out)["recommend"]
    assert asked[-1].train.budget == "50epochs" and "budget" not in found["commands"][0]


def test_epochs_that_are_hardly_any_steps_are_said(cli, data) -> None:
    told = "note: 2epochs of this data are 8 steps, too few to learn from: give it --budget 2000steps"
    Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data, train={"budget": "2epochs"})))
    assert told in cli("train", "mine.yaml", "--dry-run").out
    assert told in cli("train", "mine.yaml", "--run", "new", "--set", "run.scores=false").err
    answer = cli("train", "mine.yaml", "--run", "asked", "--set", "run.scores=false", "--budget", "8steps")
    assert answer.code == 0 and "too few to learn" not in answer.err + answer.out


def test_for_people(cli, tmp_path, monkeypatch) -> None:
    points = tmp_path / "cloud.txt"
    np.savetxt(points, np.random.default_rng(0).normal(size=(200, 2)))
    measured = {
        "members": 4,
        "seconds": 90.0,
        "engine": "fused",
        "state_bytes": 1,
        "training_bytes": 1,
        "data_bytes": 1,
    }
    asked = []
    monkeypatch.setattr("ganherd.training.setup.dry_run.describe", lambda recipe: asked.append(recipe) or measured)
    out = cli("data", "inspect", points, "--recommend").out
    assert "recommended: r15" in out and "about 1 min 30 s" in out
    assert f"ganherd train r15 --set data.source={points} --set data.points=null" in out
    (recipe,) = asked
    assert recipe.data.source == str(points) and recipe.data.points is None
    assert recommend.text({"recipe": "x", "why": "y", "members": 1, "memory_bytes": 1, "seconds": 1.0, "engine": "e",
                           "commands": ["one"], "notes": ["beware"]}).endswith("type     one\nnote: beware")  # fmt: skip


def test_what_the_recipe_reads_otherwise_is_said_and_not_said_twice(cli, tmp_path, monkeypatch) -> None:
    """Images of 64 pixels, one of them broken: the recipe skips it anyway. A folder is split as the recipe does, a file is not."""
    measured = {"members": 2, "seconds": 1.0, "engine": "fused", "steps": 3000}
    measured |= {f"{what}_bytes": 1 for what in ("state", "training", "data")}
    monkeypatch.setattr("ganherd.training.setup.dry_run.describe", lambda recipe: measured)
    for k in range(20):
        path = tmp_path / "photos" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (k, k, k)).save(path)
    (tmp_path / "photos" / "a" / "broken.png").write_bytes(b"no image")
    np.savez(tmp_path / "photos.npz", x=np.zeros((20, 64, 64, 3), np.uint8), y=np.arange(20) % 2)
    facts = json.loads(cli("data", "inspect", tmp_path / "photos", "--recommend", "--json").out)
    held = recipe_file.load(facts["recommend"]["recipe"]).data.holdout
    differs = (
        f"the recipe has data.holdout {held:g}, so the numbers of training and held-out images differ from those above"
    )
    assert "bad_images" not in facts["recommend"]["commands"][-1] and held != 0.2
    assert facts["holdout"] == held and differs not in facts["recommend"]["notes"]
    facts = json.loads(cli("data", "inspect", tmp_path / "photos.npz", "--recommend", "--json").out)
    assert facts["holdout"] == 0.2 and differs in facts["recommend"]["notes"]
