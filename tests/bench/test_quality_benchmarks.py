"""The scripts about quality: every arm is a valid recipe that differs from the base, rows are kept, and means have intervals."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import ganherd
from ganherd.recipe import recipe_file

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return {
            name: importlib.import_module(name)
            for name in ("few_images", "ingredients", "late_phase", "mode_coverage", "speedrun", "speedrun_points")
        }


def test_every_ingredient_changes_the_base_and_nothing_of_its_length_or_seed(scripts: dict[str, ModuleType]) -> None:
    own = scripts["ingredients"]
    args = argparse.Namespace(seed=1000, seconds=60, set=[])
    recipes = {arm: recipe_file.load(own.RECIPE, own.settings_of(arm, args)) for arm in own.ARMS}
    base = recipes.pop("base")
    assert not base.train.augment and not base.train.schedules and base.train.budget == "60s"
    for arm, recipe in recipes.items():
        lines = recipe_file.difference(base, recipe)
        assert lines and not any(line.startswith(("run.", "train.budget", "data.", "herd.")) for line in lines), arm


def test_rows_of_ingredients_are_written_at_once_and_not_measured_twice(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, path, arms = scripts["ingredients"], tmp_path / "out.json", []

    def measured(arm: str, args: argparse.Namespace) -> dict[str, object]:
        stored = [row["arm"] for row in json.loads(path.read_text())["rows"]] if path.exists() else []
        assert stored == arms
        arms.append(arm)
        return {"error": "out of memory"} if arm == "wide" else {"steps": 7, "fid": 20.0, "ifid": 30.5}

    monkeypatch.setattr(own, "measured", measured)
    for words in ("base,wide", "base,lecam"):
        monkeypatch.setattr(sys, "argv", ["ingredients.py", "--arms", words, "-o", str(path)])
        own.main()
    assert arms == ["base", "wide", "lecam"]  # base was there
    rows = json.loads(path.read_text())["rows"]
    assert [row["arm"] for row in rows] == arms and {"command", "commit", "date"} <= rows[0].keys()
    assert "out of memory" in capsys.readouterr().out


def test_a_way_of_the_late_phase_starts_from_what_was_trained_before_it(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, path, trained = scripts["late_phase"], tmp_path / "out.json", []

    def measured(name: str, args: argparse.Namespace) -> dict[str, object]:
        start = own.WAYS[name].start
        assert not start or (f"herd.start_from={args.runs / start}" in own.settings_of(name, args) and start in trained)
        trained.append(name)
        return {"steps": 7, "trained_seconds": 60.0, "fid": 20.0 - len(trained), "ifid": 30.5}

    monkeypatch.setattr(own, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["late_phase.py", "--ways", "classes,decay", "-o", str(path)])
    own.main()
    own.main()
    assert trained == ["base", "constant", "classes", "decay"]  # each once
    rows = json.loads(path.read_text())["rows"]
    assert [row["fid"] for row in rows] == [19.0, 18.0, 17.0, 16.0]
    with Image.open(path.with_suffix(".png")) as picture:
        assert picture.width > 2 * picture.height


def test_the_chosen_way_of_the_late_phase_is_what_the_speedrun_trains(scripts: dict[str, ModuleType]) -> None:
    own = scripts["late_phase"]
    for name, recipe in (("base", "cifar10-conditional"), ("classes", "cifar10-perclass")):
        settings = [word for word in own.WAYS[name].settings if not word.startswith("herd.")]
        chosen, packaged = recipe_file.load(recipe, settings), recipe_file.load(recipe)
        assert not recipe_file.difference(packaged, chosen)


def test_mode_coverage_reports_means_with_intervals_over_seeds(scripts: dict[str, ModuleType]) -> None:
    own = scripts["mode_coverage"]
    each = [{"modes": modes, "high_quality": 0.5, "kl": kl} for modes, kl in ((7, 0.1), (8, None), (9, 0.3))]
    summary = own.summary(each)
    assert summary["modes"]["mean"] == 8 and summary["modes"]["interval"] == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert summary["kl"]["mean"] == pytest.approx(0.2) and summary["kl"]["seeds"] == 2
    lines = own.table([{"recipe": "ring8-packed", "per_seed": each, "summary": summary}]).splitlines()
    assert "8.00 ± 2.48" in lines[1] and "50.0 ± 0.0" in lines[1] and "PacGAN2" in lines[1]


def test_the_full_protocol_has_as_many_packs_and_steps_for_every_recipe(scripts: dict[str, ModuleType]) -> None:
    own = scripts["mode_coverage"]
    args = argparse.Namespace(seed=0, seeds=10, full=True, steps=None, set=[])
    for data in ("ring8", "grid25"):
        plain, packed = (recipe_file.load(name, own.settings_of(name, args)) for name in own.PROTOCOL[data])
        assert (plain.nets.packing, packed.nets.packing) == (1, 2) and packed.herd.seeds == 10
        assert (plain.train.batch, packed.train.batch) == (100, 200)
        assert (plain.train.budget, packed.train.budget) == ("400epochs", "800epochs")  # an epoch has half the batches
        assert plain.nets.generator == packed.nets.generator and plain.nets.generator.settings["width"] == 400


def test_the_clock_of_a_speedrun_counts_each_start_once(scripts: dict[str, ModuleType]) -> None:
    own = scripts["speedrun_points"]
    lines = [  # the first phase in two pieces, of which the second starts 6 s after its command, then another phase
        ("first", "first step", 10.0, 1.0),
        ("first", "stopped", 30.0, 21.0),
        ("first", "first step", 6.0, 23.0),
        ("first", "last step", 16.0, 33.0),
        ("first", "mixture", 18.0, 35.0),
        ("herd", "first step", 21.0, 0.5),
        ("herd", "last step", 29.0, 8.5),
        ("herd", "mixture", 32.0, 11.5),
    ]
    clock = own.Clock([own.Event(*line) for line in lines])
    assert (clock.start, clock.mixture, clock.switch("herd")) == (10, 3, 5)
    assert clock.trained("first") == 20 + 10 and clock.trained("herd") == 8
    assert clock.trained("first", 21.0) == clock.trained("first", 22.5) == 20  # the second start is no training
    assert clock.at("first", 26.0) == 10 + 23 + 3
    assert clock.at("herd", 4.5) == 10 + 30 + 5 + 4 + 3
    assert clock.at("herd") == 10 + 30 + 5 + 8 + 3


def test_a_limit_is_reached_by_the_first_point_at_or_below_it(scripts: dict[str, ModuleType]) -> None:
    own = scripts["speedrun"]
    points = [{"seconds": s, "fid": fid, "ifid": 30.0} for s, fid in ((60, 25.0), (90, 10.0), (120, 12.0), (150, 8.0))]
    reached = own.reached(points)
    assert reached["fid"] == {"20": 90, "10": 90, "7": None, "5": None}
    assert reached["ifid"] == {"40": 60, "24": None, "17": None, "14": None}
    assert "not reached" in own.table({"reached": reached})


def test_points_of_a_speedrun_are_mixtures_of_earlier_steps(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    from ganherd.training.variants.unfinished import load_unfinished

    own = scripts["speedrun_points"]
    keep = own.KeepPoints(tmp_path, 1e-9, 0.0)
    settings = ["run.checkpoint_every=2", "run.sample_every=0"]
    ganherd.train(None, settings, budget=7, run=tmp_path / "herd", callbacks=[keep], quiet=True, finishers=())
    points = own.points_of(tmp_path)
    steps = [point.step for point in points]
    assert steps == sorted(steps) and {2, 4} <= set(steps) and {point.phase for point in points} == {"herd"}
    assert [load_unfinished(point.path).step for point in points] == steps
    clock = own.Clock.read(tmp_path)
    assert clock.phases == ["herd"] and 0 < clock.at("herd", points[0].recorded) < clock.at("herd")


def test_tuned_recipes_train_on_the_data_of_the_protocol_and_decay_their_rates_to_zero(
    scripts: dict[str, ModuleType],
) -> None:
    own = scripts["mode_coverage"]
    args = argparse.Namespace(seed=0, seeds=10, full=False, steps=None, set=[])
    for data, recipes in own.TUNED.items():
        plain = recipe_file.load(own.PROTOCOL[data][0])
        for name in recipes:
            recipe = recipe_file.load(name, own.settings_of(name, args))
            assert name in own.RECIPES[data] and name in own.PUBLISHED
            assert recipe.data.source == plain.data.source and recipe.data.partition == plain.data.partition
            assert recipe.data.points in (None, 100_000) and recipe.herd.seeds == 10
            rates = [one for one in recipe.train.schedules if {"optim.lr_g", "optim.lr_d"} <= set(one.keys)]
            assert rates and rates[-1].last == 0 and recipe.train.ema


@pytest.mark.further
def test_the_picture_of_samples_has_a_panel_for_each_seed(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, path = scripts["mode_coverage"], tmp_path / "out.json"
    words = ["--recipes", "ring8-modes", "--seeds", "2", "--steps", "2", "-n", "50", "--set", "data.points=200"]
    monkeypatch.setattr(sys, "argv", ["mode_coverage.py", *words, "--runs", str(tmp_path / "runs"), "-o", str(path)])
    own.main()
    with Image.open(path.with_suffix(".png")) as picture:
        assert picture.width > picture.height  # two panels next to each other
    row = json.loads(path.read_text())["rows"][0]
    assert [one["seed"] for one in row["per_seed"]] == [0, 1] and row["steps"] == 2
    assert "ring8-modes" in capsys.readouterr().out


def test_all_ways_with_few_images_have_the_same_nets_and_images(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    own = scripts["few_images"]
    recipes = {way: recipe_file.load(own.recipe_of(way, tmp_path)) for way in own.WAYS}
    assert recipes["start"].nets == recipes["nothing"].nets and recipes["nothing"].herd.first is None
    first = recipe_file.load(recipes["start"].herd.first.recipe)
    assert first == recipes["conditional"] and first.train.augment_target == 0.2 and first.data.partition == "all"
    pixels = np.arange(90, dtype=np.uint8).repeat(4 * 4).reshape(90, 1, 4, 4)
    labels = np.arange(90) % 3
    np.savez(tmp_path / "all.npz", x_train=pixels, y_train=labels, x_test=pixels[:9], y_test=labels[:9])
    args = argparse.Namespace(runs=tmp_path, data=str(tmp_path / "all.npz"), seed=0)
    with np.load(own.few(args, 5)) as few:
        assert np.bincount(few["y_train"]).tolist() == [5, 5, 5] and len(few["x_test"]) == 9
        assert (few["x_train"][:, 0, 0, 0] % 3 == few["y_train"]).all()  # labels stay with their images
        assert len(np.unique(few["x_train"][:, 0, 0, 0])) == 15
