"""The GAP study and its figures: paired differences, separate samples for choosing and measuring, valid recipes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tiny_runs

import ganherd
from ganherd.data.dataset import load
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def study() -> dict[str, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        names = (
            "existing_runs",
            "gap_arms",
            "gap_toys_show",
            "gap_toys",
            "gap_figures",
            "gap_study",
            "gap_images",
            "gap_stacked",
        )
        return {name: importlib.import_module(name) for name in names}


def arm(name: str, modes: list[float], **kinds: list[float]) -> dict[str, Any]:
    def numbers(value: float) -> dict[str, float]:
        return {"modes": value, "represented": value, "high_quality": value / 100, "reverse_kl": 0.0}

    each = [
        {"seed": seed, "mean": numbers(value), **{kind: numbers(own[seed]) for kind, own in kinds.items()}}
        for seed, value in enumerate(modes)
    ]
    return {"data": "grid25", "arm": name, "steps": 10, "overrides": [], "per_seed": each}


def test_differences_are_paired_by_seed_with_students_interval(study: dict[str, ModuleType]) -> None:
    apart = arm("apart", [10, 20, 12, 15], best=[11, 20, 13, 16], mixture=[20, 24, 20, 20])
    gap = arm("gap", [11, 21, 14, 16], best=[12, 19, 14, 16], mixture=[20, 24, 20, 20])
    found = study["gap_toys_show"].differences([arm("one", [10, 20, 12, 15]), apart, gap])
    by = {(one["arm"], one["minus"], one["kind"]): one["modes"] for one in found}
    mean = by["gap", "apart", "mean"]
    assert mean["value"] == 1.25 and (mean["above"], mean["equal"], mean["below"]) == (4, 0, 0)
    reach = 3.1824463 * np.std([1, 1, 2, 1], ddof=1) / 2  # of three degrees of freedom
    assert mean["interval"]["high"] - 1.25 == pytest.approx(reach) == 1.25 - mean["interval"]["low"]
    best = by["gap", "apart", "best"]
    assert best["value"] == 0.25 and (best["above"], best["equal"], best["below"]) == (2, 1, 1)
    assert by["gap", "apart", "mixture"]["value"] == 0 and by["apart", "one", "mean"]["value"] == 0
    assert by["apart", "one", "mixture"]["value"] == pytest.approx(21 - 14.25)  # one GAN is its own mixture
    text = study["gap_toys_show"].table([arm("one", [10, 20, 12, 15]), apart, gap], found)
    assert "GAP ×4 − four apart" in text and "4/0/0" in text and "[+0.45, +2.05]" in text


@pytest.mark.further
def test_tiny_study_keeps_earlier_tuning_results(
    study: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; two seeds, a few steps, few samples."""
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.setattr("ganherd.mixture.recalibration.NOISES", 512)
    monkeypatch.setattr(study["gap_arms"], "POINTS", 100)

    def here(jobs: Any, runs: Path, processes: int) -> list[dict[str, Any]]:
        return [row for job in jobs for row in study["gap_arms"].work(job, runs)]

    monkeypatch.setattr(study["gap_toys"], "everyone", here)
    monkeypatch.setattr(study["gap_toys"], "draw", lambda rows, path: path.write_bytes(b""))
    out = tmp_path / "toys.json"
    out.write_text(json.dumps({"tuning": ["kept"]}))
    words = ["--data", "grid25", "--seeds", "2", "--steps", "3", "-o", str(out), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["gap_toys.py", *words])
    study["gap_toys"].main()
    kept = json.loads(out.read_text())
    assert kept["tuning"] == ["kept"] and out.with_suffix(".png").exists()
    rows = {row["arm"]: row for row in kept["arms"]}
    assert {name: (len(row["per_seed"]), row["steps"]) for name, row in rows.items()} == dict.fromkeys(
        ("one", "apart", "gap"), (2, 3)
    )
    for one, apart in zip(rows["one"]["per_seed"], rows["apart"]["per_seed"], strict=True):
        assert one["mean"]["modes"] == apart["members"][0]["modes"] and len(apart["members"]) == 4  # the same GAN
        assert apart["mean"]["modes"] == np.mean([member["modes"] for member in apart["members"]])
        assert any(apart["best"] == member for member in apart["members"])
    assert len(kept["differences"]) == 9 and "four apart − one GAN" in capsys.readouterr().out
    full = study["gap_toys_show"].with_published(kept["arms"], "")
    assert "PacGAN4" in full and "24.8 ± 0.2" in full and "GAP ×4, mixture: here" in full


def test_two_arms_in_one_run_are_measured_separately(
    study: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: four that swap and four that do not, and one GAN that is the first of these."""
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.setattr("ganherd.mixture.recalibration.NOISES", 512)
    arms = study["gap_arms"]
    monkeypatch.setattr(arms, "POINTS", 100)
    job = arms.Job("grid25", arms.BOTH, 0, 2, ("train.budget=6steps", "strategy.gap.every=2steps"))
    gap, apart = arms.work(job, tmp_path)
    run = RunFolder.open(tmp_path / "grid25-gap4-0")
    swaps = [event for event in run.events() if event["event"] == "swap"]
    met = {member % 8 for event in swaps for pair in event["pairs"] for member in pair}
    assert met == set(arms.SLOTS["gap"]) and gap["slots"] == [0, 1, 2, 3] and apart["slots"] == [4, 5, 6, 7]
    assert [len(one["members"]) for row in (gap, apart) for one in row["per_seed"]] == [4] * 4
    points, one = ganherd.load(run.path).alone(4).sample(100, replica=1).x, study["gap_toys"]._first(apart)
    expected = arms.numbers(arms.coverage(points, arms.modes_of(load(run.recipe.data))))
    assert one["per_seed"][1]["members"] == [expected] and one["slots"] == [4]


def test_all_settings_of_the_toy_study_are_valid_recipes(study: dict[str, ModuleType]) -> None:
    toys, job = study["gap_toys"], study["gap_arms"].Job
    for data in ("ring8", "grid25"):
        recipe = recipe_file.load(
            f"{data}-gap4", job(data, "both", 0, 10, (*toys.FULL, *toys.FULL_GAP), "cuda").settings
        )
        assert (recipe.train.budget, recipe.data.points, recipe.herd.seeds) == ("400epochs", 100_000, 10)
        assert recipe.herd.members == 8 and recipe.strategy.gap.stay == [4, 5, 6, 7]
        assert recipe.nets.generator.settings["width"] == 400 and recipe.optim.beta1 == 0.8
        assert recipe.nets.discriminator.settings["activation"] == "maxout"
    for arm_, each in toys.TRIED.items():
        for tried in each:
            assert recipe_file.load(job("r15", arm_, 1000, 3).recipe, tried.split()).data.points == 100


def test_figures_have_valid_recipes_and_share_run_folders(study: dict[str, ModuleType]) -> None:
    plans = study["gap_figures"].FIGURES
    assert set(study["gap_figures"].asked_for(["6", "12", "20"])) == {"6a", "6b", "12a", "12b", "12c", "12d", "20"}
    folders: dict[str, Any] = {}
    for plan in plans.values():
        assert any(wanted.label for wanted in plan.runs)
        for wanted in plan.runs:
            overrides = [one.replace("$RUNS", "runs") for one in wanted.overrides]
            recipe = recipe_file.load(wanted.recipe, overrides)
            known = folders.setdefault(wanted.folder, recipe)
            assert known.model_copy(update={"run": recipe.run}) == recipe
    with pytest.raises(SystemExit, match="no figure 5"):
        study["gap_figures"].asked_for(["5"])


# -- runs and results that are kept ---------------------------------------------------------------------------------------


def test_existing_run_with_other_settings_is_refused(
    study: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.setattr("ganherd.mixture.recalibration.NOISES", 512)
    arms, kept = study["gap_arms"], study["existing_runs"]
    job = arms.Job("r15", "one", 0, 1, ("train.budget=3steps",))
    path, seconds = arms.trained(job, tmp_path)
    assert arms.trained(job, tmp_path)[0] == path and seconds > 0
    assert kept.state(path, job.recipe, [*job.settings, "engine.threads=2", "run.record_every=5"]) == "finished"
    for more in ("train.budget=4steps", "run.seed=7", "optim.lr_g=1e-2"):
        with pytest.raises(UserError, match="was trained with other settings"):
            kept.state(path, job.recipe, [*job.settings, more])
    with pytest.raises(UserError, match=r"train.budget: 3steps -> 4steps"):
        arms.trained(arms.Job("r15", "one", 0, 1, ("train.budget=4steps",)), tmp_path)
    figures = study["gap_figures"]
    with pytest.raises(UserError, match="was trained with other settings"):
        folder = Path(tmp_path / figures.toys(600)[0].folder)
        path.rename(folder)
        figures.trained(figures.toys(600)[0], tmp_path, [])
    monkeypatch.setattr(sys, "argv", ["gap_figures.py", "3", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        kept.run_main(figures.main)
    assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_results_are_complete_after_each_arm_and_calls_accumulate(
    study: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = study["gap_study"]
    those = {name: arms.Arm(name.upper(), f"recipe-{name}") for name in ("a", "b", "c")}
    facts = {"steps": 3, "trained_seconds": 1.0}
    monkeypatch.setattr(arms, "trained", lambda _, arm, asked: {"label": arm.label, "run": arm.recipe, **facts})
    path, seen = tmp_path / "out.json", []

    def call(*words: str) -> list[tuple[str, Any]]:
        asked = arms.parser("", list(those), 10).parse_args([*words])
        results = arms.opened(path, {"n": asked.n})

        def measure(name: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
            seen.append(list(json.loads(path.read_text())["arms"]) if path.exists() else [])
            if "value" not in row:
                yield {"value": name}

        return list(arms.each(those, asked, results, path, measure))

    assert [name for name, _ in call("--only", "c")] == ["c"]
    assert [(name, row["value"]) for name, row in call("--only", "b", "a")] == [("a", "a"), ("b", "b"), ("c", "c")]
    assert seen == [[], ["c"], ["c", "a"]] and len(json.loads(path.read_text())["commands"]) == 2
    assert call("--only", "a")[0][1]["value"] == "a"  # which an earlier call measured
    with pytest.raises(UserError, match="results of other settings \\(n: 10 -> 20\\)"):
        call("-n", "20")


def test_image_studies_have_valid_recipes_and_published_numbers(study: dict[str, ModuleType]) -> None:
    images, stacked = study["gap_images"], study["gap_stacked"]
    for data, published in images.PUBLISHED.items():
        arms = images.arms(data)
        for kind, those in published["gam2"].items():
            assert (
                set(those) == {"dcgan5": {"apart-d", "gap-d4", "gap-c4"}, "gran": {"apart-g", "gap-g4", "gap-c4"}}[kind]
            )
            assert all(set(cells) == {"avg", "worst"} for cells in those.values())
        assert all(recipe_file.load(arm.recipe, arm.settings).members == 4 for arm in arms.values())
    assert all(recipe_file.load(arm.recipe, arm.settings).members == 4 for arm in stacked.ARMS.values())
    found = {"modes": 90.0, "kl": 3.5}
    row = {"label": "four apart", "found": {"members": [found], "mean": found, "best": found, "mixture": found}}
    text = stacked.table({"arms": {"apart": row}})
    assert "PacDCGAN4" in text and "one GAN: here" in text and "four apart, mixture: here" in text


def test_gam2_is_stored_by_kind_next_to_published_numbers(
    study: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = study["gap_images"]
    rows = [("apart-d", {"run": "runs/one"}), ("gap-d4", {"run": "runs/two"})]
    span = {"least": 0.4, "largest": 0.5}
    own = [{"run": run, "kind": "", "avg": span, "worst": span} for run in ("one", "two")]
    own[1]["words"] = {"avg": "strongly helps", "worst": "helps"}
    told = {"gam2": {"rows": own, "table": "GAM-II"}, "runs": {r["run"]: {"scores": {"gam2": {}}} for _, r in rows}}
    calls: list[Any] = []
    monkeypatch.setattr(images, "command", lambda *words: calls.append(words) or json.dumps(told))
    found = images.judged(rows, 10_000)
    assert len(calls) == 1 and 10_000 in calls[0] and found["table"] == "GAM-II\n"  # the GRANs are not there
    assert found["by_kind"]["dcgan5"]["gap-d4"]["words"]["avg"] == "strongly helps"
    text = images.table({"settings": {"data": "mnist"}, "gam2": found, "arms": {}})
    assert "0.400 to 0.500 strongly helps" in text and "0.430-0.476" in text and "0.355-0.405" in text
