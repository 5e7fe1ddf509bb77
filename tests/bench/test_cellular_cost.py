"""`ganherd bench cellular`: routines next to the reference, the floor of the same run, and grids of any size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_runs
import torch

from ganherd.recipe.recipe_file import load
from ganherd.runs.profile import ROUTINES
from ganherd_benchmarks import cellular_cost, cellular_recipe, products
from ganherd_benchmarks.cellular_cost import REFERENCE, CellularCostRequest

pytestmark = pytest.mark.further


@pytest.fixture(autouse=True)
def little_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Made images, few of them, nothing of the user's own, and floors that are measured briefly."""
    torch.set_num_threads(1)
    monkeypatch.setattr(products, "_MEASURED", 4)
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cellular_recipe, "IMAGES", 300)


def test_reference_sums_to_the_published_total() -> None:
    known = [seconds for seconds in REFERENCE.values() if seconds is not None]
    assert sum(known) == pytest.approx(cellular_cost.REFERENCE_TOTAL, abs=0.06)
    assert set(REFERENCE) == {*ROUTINES, "data loading"}


def test_routines_add_up_to_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_runs.command("bench", "cellular", "--iterations", 1, "--batches", 3, "--json", "-q") == 0
    rows = {row["routine"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == [*REFERENCE, "total", "real features, once a run"]
    spent = sum(rows[name]["ganherd"] for name in ROUTINES)
    assert 0 < spent <= rows["total"]["ganherd"] * 1.01
    assert spent > 0.8 * rows["total"]["ganherd"]  # little is spent outside of them
    assert rows["total"]["floor"] == pytest.approx(rows["update"]["floor"] + rows["evaluate"]["floor"])
    assert rows["data loading"]["ganherd"] is None and rows["update"]["grid"] == [2, 2]
    text = cellular_cost.table(list(rows.values()))
    assert "in update" in text and "16.70" not in text and "reference: left out" in text
    assert len({len(line) for line in text.splitlines()[1:10]}) == 1


def test_reference_is_shown_only_for_its_own_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def total(**changes: int) -> float | None:
        spent = dict.fromkeys(ROUTINES, 1.0)
        cost = cellular_cost.Cost(4, 1, spent, sum(spent.values()), 0.1, "loop")
        monkeypatch.setattr(cellular_cost, "run", lambda *_, **__: cost)
        monkeypatch.setattr(products, "floor", lambda *_: {"update": 1.0})
        rows = cellular_cost.measure(CellularCostRequest(**changes), lambda _: None)
        return next(row["reference"] for row in rows if row["routine"] == "total")

    assert total() == 16.7 and total(batches=30) is None and total(grid=3) is None


def test_floor_counts_the_products_of_the_nets_of_the_paper() -> None:
    recipe = load("mnist-cellular-2x2", ["engine.threads=1"])
    found = products.floor(recipe, 2, lambda: 0.0)
    assert found == {"update": 0.0, "evaluate": 0.0}
    g, d = products._layers([64, 256, 256, 784]), products._layers([784, 256, 256, 1])
    each = [
        sum(2 * p.a.shape[1] * p.a.shape[2] * p.b.shape[2] for p in step(g, d, 100, 1))
        for step in (products._generator_step, products._discriminator_step)
    ]
    of_g, of_d = (200 * sum(a * b for a, b in layers) for layers in (g, d))
    # forward, and back to weights and inputs; the generator's first layer passes nothing on, nor does the discriminator's
    assert each[0] == of_g + 2 * of_d + of_g + of_g - 200 * 64 * 256
    assert each[1] == of_g + 2 * (of_d + of_d + of_d - 200 * 784 * 256)


def test_several_grid_sizes_are_measured_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--grid-sizes", "1-2", "--iterations", 1, "--batches", 2, "--device", "cpu")
    assert tiny_runs.command("bench", "cellular", *words, "-q", "-o", tmp_path / "cost.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["1×1", "1"], ["2×2", "4"]]
    assert [line.split()[0] for line in lines[4:]] == ["rows", "picture"]  # the files, named
    rows = json.loads((tmp_path / "cost.json").read_text())["rows"]
    assert [row["cells"] for row in rows] == [1, 4] and all(row["seconds"] > 0 for row in rows)
    assert all(row["memory"] > 2**20 for row in rows)
    assert (tmp_path / "cost.png").stat().st_size > 1000


def test_out_of_memory_is_a_row_and_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*arguments: object, **settings: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr(cellular_cost, "run", full)
    rows = cellular_cost.sizes(CellularCostRequest(), (8, 12), lambda text: None, tmp_path / "cost.json")
    assert [row["grid"] for row in json.loads((tmp_path / "cost.json").read_text())["rows"]] == [8]
    assert [row["grid"] for row in rows] == [8] and "out of memory" in cellular_cost.sizes_table(rows)


@pytest.mark.parametrize("words", [("--grid-sizes", "two"), ("--grid-sizes", "0"), ("-o", "x.json")])
def test_impossible_grid_sizes_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_runs.command("bench", "cellular", *words, "-q") == 2
    assert "--grid-sizes" in capsys.readouterr().err
