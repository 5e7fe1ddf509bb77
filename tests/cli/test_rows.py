"""A table from its rows to samples, scores, pictures, exports and the page: one short run on wine, as users see it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from run_fixtures import Answer

import ganherd
from ganherd import recommend, scoring
from ganherd.data.dataset import load
from ganherd.mixture.mixture import Mixture
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError

TINY = [
    "train.budget=12steps",
    "nets.generator.width=8",
    "nets.discriminator.width=8",
    "run.sprites=2",
    "run.record_every=6",
    "run.scores=false",
    "engine.name=fused",
]
Cli = Callable[..., Answer]
WINE = load(DataConfig(source="wine"))


@pytest.fixture(scope="module")
def wine_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = recipe_file.load("wine-wcgan", TINY)
    return ganherd.train(recipe, run=tmp_path_factory.mktemp("runs") / "wine", quiet=True).path


@pytest.fixture(scope="module")
def mixture(wine_run: Path) -> Mixture:
    return ganherd.load(wine_run)


def test_samples_are_in_the_units_of_the_data(mixture: Mixture) -> None:
    samples = mixture.sample(200)
    assert samples.x.shape == (200, 13) and samples.columns == WINE.columns and mixture.kind == "rows"
    off = np.abs(samples.x.mean(0) - WINE.x.mean(0)) / WINE.x.std(0)
    assert (off < 1.5).all()  # magnesium is about 100, hue about 1: raw outputs of the nets would be far off
    assert samples.points is not None and samples.points.shape == (200, 2)


def test_a_csv_of_samples_has_names_and_labels_and_can_be_read_again(cli: Cli, wine_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    assert cli("sample", wine_run, "-o", str(target), "--per-class", "7", "--quiet").code == 0
    rows = list(csv.reader(target.open()))
    assert rows[0] == [*WINE.columns, "label"] and len(rows) == 22 and rows[1][-1] == "class_0"
    again = load(DataConfig(source=str(target), holdout=0))
    drawn = ganherd.load(wine_run).sample(7, label=0)
    assert again.labels == WINE.labels and np.allclose(again.x[:7], drawn.x, rtol=1e-5)


def test_the_label_column_of_a_table_counts_when_a_recipe_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{i % 7},{i % 5},{'red' if i % 2 else 'blue'}" for i in range(40)]
    Path("mine.csv").write_text("\n".join(["a,b,c,colour", *rows]))
    choice = recommend.choose_for("mine.csv", given=["data.label=colour"])
    assert "data.label=colour" in choice.sets and choice.recipe == "wine-wcgan"
    data = {"source": "mine.csv", "label": "colour"}
    run = ganherd.train(data=data, budget=2, run="run", quiet=True, finishers=())
    assert run.sample(2, label="red").x.shape == (2, 3)


def test_an_npz_of_samples_has_the_names_of_columns(cli: Cli, wine_run: Path, tmp_path: Path) -> None:
    assert cli("sample", wine_run, "-o", str(tmp_path / "out.npz"), "--quiet").code == 0
    again = load(DataConfig(source=str(tmp_path / "out.npz"), holdout=0))
    assert again.columns == WINE.columns and again.kind == "rows" and len(again.x) == 64


def test_images_cannot_be_written_as_a_table_and_rows_not_as_images(wine_run: Path, tmp_path: Path, cli: Cli) -> None:
    answer = cli("sample", wine_run, "-o", f"{tmp_path}/folder/", "--quiet")
    assert answer.code == 2 and "rows cannot be written as images" in answer.err


@pytest.mark.parametrize("name", ["out.png", "out.svg"])
def test_samples_are_drawn(cli: Cli, wine_run: Path, tmp_path: Path, name: str) -> None:
    assert cli("sample", wine_run, "-o", str(tmp_path / name), "--quiet").code == 0
    assert (tmp_path / name).stat().st_size > 10_000
    if name.endswith("svg"):
        assert all(column in (tmp_path / name).read_text() for column in ("alcohol", "proline"))


def test_a_run_leaves_pictures_and_sprites_of_the_plane(wine_run: Path) -> None:
    assert (wine_run / "samples" / "final.png").is_file()
    index = json.loads((wine_run / "sprites" / "index.json").read_text())
    assert index["kind"] == "points" and index["projected"] and len(index["low"]) == 2
    sheet = json.loads((wine_run / "sprites" / "step-00000012.json").read_text())
    assert np.array(sheet).shape == (3, index["samples"], 2)


def test_the_page_shows_rows_as_points(mixture: Mixture) -> None:
    from ganherd.ui.sampler import shown

    answer = shown(mixture.sample(5))
    assert answer["kind"] == "points" and np.array(answer["points"]).shape == (5, 2)


@pytest.mark.further
def test_the_report_shows_columns(cli: Cli, wine_run: Path) -> None:
    assert cli("report", wine_run).code == 0
    assert "malic_acid" in (wine_run / "report.html").read_text()


def test_scores_of_rows(mixture: Mixture) -> None:
    scores = scoring.score(mixture, WINE, samples=300)
    assert {"fid", "diversity", "label_accuracy", "columns", "correlations"} <= set(scores) and "modes" not in scores
    assert scores["fid"]["network"] == "columns" and scores["fid"]["by_chance"] > 0
    columns = scores["columns"]
    assert columns["worst_column"] == next(iter(columns["per_column"])) and set(columns["per_column"]) == set(
        WINE.columns
    )
    assert columns["value"] > columns["by_chance"] > 0 and scores["correlations"]["value"] > 0


def test_a_table_is_scored_against_a_table(tmp_path: Path, cli: Cli) -> None:
    rows = WINE.x[::2]
    np.savez(tmp_path / "half.npz", x=rows, columns=np.array(WINE.columns))
    command = ["score", "--real", "wine", "--fake", str(tmp_path / "half.npz"), "--metrics", "fid,columns", "--json"]
    scores = json.loads(cli(*command).out)["scores"]
    assert scores["columns"]["value"] < 0.2 and scores["fid"]["value"] < 1.5


@pytest.mark.parametrize("kind", ["torch", "onnx", "hub"])
def test_exports_of_rows_equal_samples(cli: Cli, wine_run: Path, mixture: Mixture, tmp_path: Path, kind: str) -> None:
    target = tmp_path / ("rows.onnx" if kind == "onnx" else "rows")
    assert cli("export", wine_run, "--format", kind, "-o", str(target)).code == 0
    expected = mixture.portable().sample(8).x
    if kind == "onnx":
        from ganherd.export.onnx_graph import run_onnx_file

        x = run_onnx_file(target, range(8))[0]
    else:
        from ganherd.export import loader

        x = loader.load(str(target / "model.safetensors")).sample(range(8))[0].numpy()
    assert np.allclose(x, expected, rtol=1e-4)
    if kind == "hub":
        assert "rows of 13 columns" in (target / "README.md").read_text()


def test_a_page_of_rows_is_refused_in_one_sentence(wine_run: Path, tmp_path: Path, cli: Cli) -> None:
    answer = cli("export", wine_run, "--format", "html", "-o", str(tmp_path / "page.html"))
    assert answer.code == 2 and "not rows of 13 numbers: use torch or onnx" in answer.err


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("nets.generator=dcgan", "generator dcgan is for images, and this data has rows of 13 numbers"),
        ("train.flip=true", "wine has rows: leave them out"),
        ("data.size=32", "data.size is for images, and wine holds none"),
    ],
)
def test_settings_for_images_are_refused(setting: str, sentence: str, cli: Cli) -> None:
    answer = cli("train", "wine-wcgan", "--dry-run", "--set", setting)
    assert answer.code == 2 and sentence in answer.err


def test_inspect_describes_columns_and_draws_them(tmp_path: Path) -> None:
    from ganherd.data.inspect import contact_sheet, describe, text

    facts = describe(WINE)
    assert facts["kind"] == "rows" and facts["columns"][0]["name"] == "alcohol" and len(facts["columns"]) == 13
    assert "wine: 178 rows of 13 columns" in text(facts) and "proline" in text(facts)
    assert contact_sheet(WINE, tmp_path / "sheet.png").stat().st_size > 10_000


@pytest.mark.parametrize("columns", [3, 4, 7])
def test_histograms_fill_the_width_of_a_sheet(columns: int) -> None:
    from ganherd.viz.row_sheets import RowView, draw_rows

    x = np.random.default_rng(0).normal(size=(20, columns))
    figure = draw_rows(x, RowView([f"c{j}" for j in range(columns)], x[:, :2]))
    assert len(figure.axes) == 1 + columns
    assert any(axes.get_subplotspec().is_last_col() for axes in figure.axes)


def test_a_table_of_your_own_gets_a_recipe(tmp_path: Path) -> None:
    from ganherd.recommend import choose_for

    (tmp_path / "t.csv").write_text("a,b,c\n" + "".join(f"{i},{i * i},{i % 3}\n" for i in range(30)))
    choice = choose_for(str(tmp_path / "t.csv"))
    assert choice.recipe == "wine-wcgan" and "data.partition=all" in choice.sets
    assert any("data.label" in note for note in choice.notes)


@pytest.mark.further
def test_train_takes_a_table(cli: Cli, tmp_path: Path) -> None:
    rows = "".join(f"{i},{i * i},{i % 7},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(f"a,b,c,class\n{rows}")
    answer = cli("train", tmp_path / "t.csv", "--dry-run")
    assert (
        answer.code == 0
        and "wine-wcgan" in answer.out + answer.err
        and "32 rows of shape [3]" in answer.out + answer.err
    )
    tiny = [word for one in TINY if not one.startswith("run.scores") for word in ("--set", one)]
    answer = cli("train", tmp_path / "t.csv", *tiny, "--run", tmp_path / "run", "--quiet")
    assert answer.code == 0 and "-n 1000 -o rows.csv" in answer.out
    (tmp_path / "t.csv").write_text("a,b,c,class\n1,2,,a\n")
    answer = cli("train", tmp_path / "t.csv", "--dry-run")
    assert answer.code == 2 and "row 1 (line 2), column 'c': the value is missing" in answer.err


def test_a_damaged_mixture_with_other_columns_is_refused(wine_run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(wine_run / "mixture", copy / "mixture")
    path = copy / "mixture" / "mixture.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"scale": facts["scale"][:-1]}))
    with pytest.raises(UserError, match="as many entries as there are columns"):
        ganherd.load(copy)


def test_names_of_columns_are_no_formulas(tmp_path: Path) -> None:
    from ganherd.viz.pictures import svg
    from ganherd.viz.row_sheets import RowView, draw_rows

    x = np.random.default_rng(0).normal(size=(20, 3))
    picture = svg(draw_rows(x, RowView((r"$\frac$", "<b>", "c" * 50), x[:, :2])))
    assert r"$\frac$" in picture and "&lt;b&gt;" in picture


@pytest.mark.parametrize("columns", [1, 31])
def test_one_column_and_many_columns_are_drawn(columns: int) -> None:
    from ganherd.viz.pictures import png
    from ganherd.viz.row_sheets import RowView, draw_rows

    x = np.random.default_rng(0).normal(size=(20, columns))
    x[3] = np.nan  # of a member that broke
    names = [f"x{j}" for j in range(columns)]
    assert len(png(draw_rows(x, RowView(names, x[:, [0, 0]], np.nan_to_num(x[:, [0, 0]])), np.nan_to_num(x)))) > 5000
