"""Figures of several runs: each shows what the files of the runs hold, and all are on one page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_files
import tiny_runs
import yaml
from PIL import Image
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.report import figures
from ganherd.report.figures import class_maps, learning_curves
from ganherd.report.figures.figure_runs import FigureRun, FigureSkipped, opened
from ganherd.runs.records import COSTS
from ganherd.util.errors import UserError

GAP = {"strategy": {"name": "gap", "gap": {"every": "2steps"}}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """On images one GAN and three that swap, of two seeds each; on points one GAN with two sizes of data."""
    folder = tmp_path_factory.mktemp("runs")
    data = tiny_data(folder / "data.npz", each=(60, 60, 60))
    images: dict[str, Any] = {"data": {"partition": "all"}, "loss": {"name": "non-saturating"}}
    images["run"] = {"validation": 8, "record_every": 1}
    points = {"nets": {"latent": 2, "generator": "toy", "discriminator": "toy"}, "train": {"ema": None}}
    small = {"generator": {"name": "toy", "width": 4}, "discriminator": {"name": "toy", "width": 4}}
    wanted = {
        "single": tiny_recipe(data, **images, herd={"seeds": 2}),
        "gap": tiny_recipe(data, **images, **GAP, herd={"members": 3, "seeds": 2}),
        "few": tiny_recipe(
            "ring8", data={"partition": "all", "points": 40}, **{**points, "nets": {"latent": 2, **small}}
        ),
        "many": tiny_recipe(
            "ring8", data={"partition": "all", "points": 90}, **{**points, "nets": {"latent": 2, **small}}
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        patch.setattr("ganherd.mixture.recalibration.NOISES", 512)
        for name, recipe in wanted.items():
            ganherd.train(recipe, run=folder / name, quiet=True)
    return {name: folder / name for name in wanted}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(class_maps, "COUNTED", 200)
    monkeypatch.setattr(class_maps, "MAPPED", 40)
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def of(*paths: Path) -> list[FigureRun]:
    return opened(paths, None, trust_code=False)


@pytest.mark.usefixtures("brief_classifier")
def test_all_figures_for_images_are_drawn_on_one_page(runs: dict[str, Path], tmp_path: Path) -> None:
    told: list[str] = []
    paths = [runs["single"], runs["gap"]]
    page, found = figures.draw(paths, tmp_path / "out", names=["×1", "GAP ×3"], progress=told.append)
    names = ["samples-1", "samples-GAP-3", "generalisation", "spread", "map", "classes"]
    assert [one.name for one in found] == names
    text = page.read_text()
    for one in found:
        assert Image.open(one.png).width > 200 and one.png.with_suffix(".svg").is_file()
        assert f">{one.name}</h2>" in text and len(one.caption) > 40
    assert text.count("data:image/png;base64,") == len(names) and "×1 · GAP ×3" in text
    assert "http" not in text.replace("http-equiv", "")
    assert any("points is left out" in line for line in told)


def test_points_have_a_row_for_each_data_set(runs: dict[str, Path]) -> None:
    ((name, caption, picture),) = figures.FIGURES["points"](of(runs["few"], runs["many"]), 0, lambda line: None)
    titles = [axes.get_title(loc="left") for axes in picture.axes]  # type: ignore[union-attr]
    assert name == "points" and "not chosen" in caption
    assert titles[0] == "ring8, 40 points" and titles[2] == "ring8, 90 points"
    assert titles[1].startswith("few: ") and "of 8 modes" in titles[1] and titles[3].startswith("many: ")


def test_curves_are_the_recorded_costs(runs: dict[str, Path]) -> None:
    """The mean over members and seeds, and one member; the gap between held-out and trained data."""
    ((_, caption, picture),) = learning_curves.generalisation(of(runs["single"], runs["gap"]), 0, lambda line: None)
    assert "on 8 images that they train on" in caption
    lines = run_files.json_lines(runs["gap"] / "metrics.jsonl")
    trained, held = (np.array([line[name] for line in lines]) for name in COSTS)
    mean, one, gap = picture.axes  # type: ignore[union-attr]
    assert [line.get_label() for line in mean.lines] == [
        f"{n}: {w}" for n in ("single", "gap") for w in ("train", "held out")
    ]
    np.testing.assert_allclose(mean.lines[2].get_ydata(), trained.mean(1))
    np.testing.assert_allclose(mean.lines[3].get_ydata(), held.mean(1))
    np.testing.assert_allclose(one.lines[3].get_ydata(), held[:, 0])
    np.testing.assert_allclose(gap.lines[1].get_ydata(), (held - trained).mean(1))
    np.testing.assert_allclose(mean.lines[2].get_xdata(), [line["epoch"] for line in lines])


def test_trials_are_replicas_and_not_members(runs: dict[str, Path], tmp_path: Path) -> None:
    """A run of two trials and one seed has two replicas of three members, as the run of two seeds has."""
    path = shutil.copytree(runs["gap"], tmp_path / "trials")
    recipe = yaml.safe_load((path / "recipe.yaml").read_text())
    recipe["herd"] |= {"seeds": 1, "trials": [{"optim.lr_g": 1e-3}, {"optim.lr_g": 2e-3}]}
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    for seeds, trials in zip(of(runs["gap"])[0].costs, of(path)[0].costs, strict=True):
        np.testing.assert_array_equal(seeds, trials)


def test_images_of_other_data_are_not_drawn_as_the_same(tmp_path: Path, runs: dict[str, Path]) -> None:
    """Data of the same shape and labels, but with other images."""
    other = shutil.copytree(runs["single"], tmp_path / "other")
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["data"]["source"] = str(tiny_data(tmp_path / "data.npz", each=(60, 60, 61)))
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(FigureSkipped, match="other was trained on other data than single"):
        list(class_maps.classes(of(runs["single"], other), 0, lambda line: None))


@pytest.mark.usefixtures("brief_classifier")
@pytest.mark.parametrize("figure", [class_maps.classes, class_maps.tsne])
def test_runs_that_held_out_other_rows_of_the_same_images_are_drawn_together(
    tmp_path: Path, runs: dict[str, Path], figure: Any
) -> None:
    other = shutil.copytree(runs["single"], tmp_path / "other")
    recipe = yaml.safe_load((other / "recipe.yaml").read_text())
    recipe["data"]["holdout"] = 0.5
    (other / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    opened_runs = of(runs["single"], other)
    assert opened_runs[0].dataset.digest != opened_runs[1].dataset.digest
    ((_, caption, _),) = figure(opened_runs, 0, lambda line: None)
    assert "The data is what single was trained on. Other images of it were held out by: other." in caption
    ((_, caption, _),) = figure(opened_runs[:1], 0, lambda line: None)
    assert "held out" not in caption.partition("seed 0")[2]


def test_spread_is_the_standard_deviation_over_the_members_of_each_seed(runs: dict[str, Path]) -> None:
    ((_, _, picture),) = learning_curves.spread(of(runs["single"], runs["gap"]), 0, lambda line: None)
    held = np.array([line[COSTS[1]] for line in run_files.json_lines(runs["gap"] / "metrics.jsonl")]).reshape(-1, 2, 3)
    by_seed = held[len(held) // 2 :].std(2).mean(0)
    panel, side = picture.axes  # type: ignore[union-attr]
    assert len(panel.lines) == 3  # the members of the first seed; one GAN has no spread
    assert side.patches[0].get_width() == pytest.approx(by_seed.mean())
    np.testing.assert_allclose(side.collections[0].get_offsets()[:, 0], by_seed)


def test_rows_of_data_are_called_images_or_points(runs: dict[str, Path]) -> None:
    assert of(runs["single"])[0].kind == "images" and of(runs["few"])[0].kind == "points"


def test_overlap_is_one_half_for_equal_distributions() -> None:
    random = np.random.default_rng(0)
    data, same, far = random.normal(size=(3, 800, 4))
    found = class_maps._overlap({"data": data, "same": same, "far": far + 50, "copies": data + 1e-9})
    assert found["same"] == pytest.approx(0.5, abs=0.06) and found["far"] == 0 and found["copies"] == 1


@pytest.mark.usefixtures("brief_classifier")
def test_a_map_of_rows_that_are_all_equal_is_left_out(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    embed = class_maps.drawing.embed
    monkeypatch.setattr(
        class_maps.drawing, "embed", lambda groups, *rest, **named: embed({"data": np.ones((9, 2))}, *rest, **named)
    )
    with pytest.raises(FigureSkipped, match="all 9 rows of a map are equal"):
        list(class_maps.tsne(of(runs["single"]), 0, lambda line: None))


def test_figures_that_do_not_fit_are_left_out_with_a_reason(runs: dict[str, Path], tmp_path: Path) -> None:
    nothing = lambda line: None  # noqa: E731
    with pytest.raises(FigureSkipped, match="one each"):
        list(learning_curves.spread(of(runs["single"]), 0, nothing))
    with pytest.raises(FigureSkipped, match="run.validation=256"):
        list(learning_curves.generalisation(of(runs["few"]), 0, nothing))
    with pytest.raises(UserError, match="no figure fits these runs: map is left out: it is for images"):
        figures.draw([runs["few"]], tmp_path, only=["map"])
    with pytest.raises(UserError, match="no figure named 'maps'"):
        figures.draw([runs["few"]], tmp_path, only=["maps"])
    with pytest.raises(UserError, match="2 names for 1 run"):
        figures.draw([runs["few"]], tmp_path, names=["a", "b"])
    with pytest.raises(UserError, match="named twice"):
        figures.draw([runs["few"], runs["few"]], tmp_path)


@pytest.mark.further
def test_runs_left_out_of_a_figure_are_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ("--only", "points,generalisation,spread")
    assert tiny_runs.command("figures", runs["few"], runs["single"], runs["gap"], "-o", tmp_path / "out", *only) == 0
    told, page = capsys.readouterr().err, (tmp_path / "out" / "figures.html").read_text()
    costs = "few is left out: its records have no costs on held-out data; train it with --set run.validation=8"
    one = "single is left out: it has one member"
    images = ("gap is left out: its data are images", "single is left out: its data are images")
    for sentence in (costs, one, *images):
        assert sentence in told and f"{sentence}." in page
    assert told.count(costs) == 2 and told.count(one) == 1


@pytest.mark.further
def test_the_command_names_what_it_wrote(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("figures", runs["single"], runs["gap"], "-o", tmp_path / "out", "--only", "generalisation,spread", "-q")
    assert tiny_runs.command(*words, "--json", "--names", "one, three") == 0
    facts = json.loads(capsys.readouterr().out)
    assert [Path(one).name for one in facts["figures"]] == ["generalisation.png", "spread.png"]
    assert Path(facts["page"]).read_text().count("<h2>") == 2
    assert tiny_runs.command("figures", tmp_path / "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err
