"""`ganherd sample`: pictures, arrays and folders that say the same, for every n."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from recipes import LABELS
from run_files import arrays


def test_npz_has_what_programs_rely_on(cli, run) -> None:
    answer = cli("sample", run, "-n", 50, "-o", "out.npz", "--json")
    assert json.loads(answer.out) == {"output": "out.npz", "samples": 50, "seed": 0}
    found = arrays("out.npz")
    assert set(found) == {"x", "y", "member", "labels"}
    assert found["x"].dtype == np.uint8 and found["x"].shape == (50, 1, 8, 8)
    assert found["y"].dtype == found["member"].dtype == np.int64
    assert found["labels"].tolist() == list(LABELS)
    assert np.array_equal(found["y"], found["member"])  # member k stands for class k
    assert set(found["y"]) == {0, 1, 2}
    assert [p.name for p in Path().iterdir()] == ["out.npz"]  # nothing else is left behind


@pytest.mark.further
def test_points_are_float32_without_labels(cli, tmp_path) -> None:
    from recipes import tiny_recipe

    import ganherd

    toy = {"generator": {"name": "toy", "width": 8}, "discriminator": {"name": "toy", "width": 8}, "latent": 2}
    recipe = tiny_recipe(
        "ring8", nets=toy, data={"source": "ring8", "points": 80, "partition": "all"}, herd={"members": 2}
    )
    path = ganherd.train(recipe, run=tmp_path / "ring", quiet=True).path
    assert cli("sample", path, "-n", 7, "-o", "out.npz").code == 0
    found = arrays("out.npz")
    assert found["x"].dtype == np.float32 and found["x"].shape == (7, 2)
    assert found["y"].tolist() == [-1] * 7 and set(found["member"]) <= {0, 1}
    assert cli("sample", path, "-o", "points.png").code == 0
    assert Image.open("points.png").format == "PNG"
    assert "cannot be written as images" in cli("sample", path, "-o", "folder/").sentence
    assert "generates the label '3' alone" in cli("sample", path, "-o", "x.npz", "--label", "3").sentence


def test_image_i_of_a_seed_is_the_same_for_every_n(cli, run) -> None:
    for label in ([], ["--label", "one"]):
        for n in (1, 10, 64, 130):
            assert cli("sample", run, "-n", n, *label, "--seed", 5, "-o", f"{n}.npz").code == 0
        longest = arrays("130.npz")
        for n in (1, 10, 64):
            for name in ("x", "y", "member"):
                assert np.array_equal(arrays(f"{n}.npz")[name], longest[name][:n])
    cli("sample", run, "-n", 130, "--seed", 6, "-o", "other.npz")
    assert not np.array_equal(arrays("other.npz")["x"], longest["x"])


def test_a_label_by_its_name_or_number(cli, run) -> None:
    cli("sample", run, "--label", "one", "-n", 5, "-o", "name.npz")
    cli("sample", run, "--label", "1", "-n", 5, "-o", "number.npz")
    assert np.array_equal(arrays("name.npz")["x"], arrays("number.npz")["x"])
    assert arrays("name.npz")["y"].tolist() == [1] * 5
    cli("sample", run, "--label", "2", "-n", 5, "-o", "two.npz")
    assert arrays("two.npz")["y"].tolist() == [2] * 5
    for wrong in ("three", "3", "-1", "", "1.0"):
        sentence = cli("sample", run, f"--label={wrong}", "-o", "x.npz").sentence
        assert f"has no label {wrong!r}" in sentence and "zero, one, 2" in sentence
    assert not Path("x.npz").exists()


def test_one_member_by_its_number(cli, run) -> None:
    """A member of a per-class herd generates its label only."""
    assert cli("sample", run, "--member", 1, "-n", 5, "-o", "out.npz").code == 0
    samples = arrays("out.npz")
    assert set(samples["member"].tolist()) == {1} and set(samples["y"].tolist()) == {1}
    assert cli("sample", run, "--member", 99, "-o", "out.npz").sentence.endswith("counted from 0.")
    assert "leave --label" in cli("sample", run, "--member", 1, "--label", "2", "-o", "out.npz").sentence
    assert "leave --member out" in cli("sample", run, "--member", 1, "--weights", "uniform", "-o", "out.npz").sentence


def test_per_class(cli, run) -> None:
    assert cli("sample", run, "--per-class", 4, "-o", "each.npz").code == 0
    assert arrays("each.npz")["y"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    cli("sample", run, "--label", "one", "-n", 4, "-o", "one.npz")
    assert np.array_equal(arrays("each.npz")["x"][4:8], arrays("one.npz")["x"])
    assert "--label" in cli("sample", run, "--per-class", 4, "--label", "one", "-o", "x.npz").sentence


def test_a_folder_that_training_reads_again(cli, run) -> None:
    assert cli("sample", run, "-n", 30, "-o", "images/").out == "images\n"
    cli("sample", run, "-n", 30, "-o", "out.npz")
    found = arrays("out.npz")
    assert sorted(p.name for p in Path("images").iterdir()) == sorted(LABELS)
    first = np.asarray(Image.open("images/one/000000.png"))
    assert np.array_equal(first, found["x"][found["y"] == 1][0, 0])
    facts = json.loads(cli("data", "inspect", "images", "--json").out)
    assert facts["shape"] == [1, 8, 8] and facts["train"] + facts["held_out"] == 30
    assert {row["name"]: row["train"] + row["held_out"] for row in facts["classes"]} == {
        name: int((found["y"] == k).sum()) for k, name in enumerate(LABELS)
    }
    assert "not an empty folder" in cli("sample", run, "-o", "images/").sentence


def test_samples_can_be_trained_on(cli, run) -> None:
    cli("sample", run, "-n", 60, "-o", "out.npz")
    facts = json.loads(cli("data", "inspect", "out.npz", "--json", "-o", "sheet.png").out)
    assert [row["name"] for row in facts["classes"]] == list(LABELS) and facts["notes"] == []
    assert Image.open("sheet.png").size[0] > 8
    answer = cli("train", "--set", "data.source=out.npz", "--dry-run", "--json", "--set", "engine.name=loop",
                 "--set", "engine.threads=1", "--budget", "3steps")  # fmt: skip
    assert json.loads(answer.out)["members"] == 3


def test_grid_and_svg(cli, run) -> None:
    for name in ("grid.png", "deep/er/grid.PNG", "grid.svg"):
        assert cli("sample", run, "-n", 9, "-o", name).code == 0
        assert Path(name).stat().st_size > 100


def test_replicas_are_other_mixtures(cli, seeds_run) -> None:
    for replica in (0, 1):
        assert cli("sample", seeds_run, "-n", 8, "--replica", replica, "-o", f"{replica}.npz").code == 0
    assert not np.array_equal(arrays("0.npz")["x"], arrays("1.npz")["x"])
    assert np.array_equal(arrays("0.npz")["y"], arrays("1.npz")["y"])  # the same routes, through other generators
    assert (
        "no replica 2; this mixture has 2, counted from 0"
        in cli("sample", seeds_run, "--replica", 2, "-o", "x.npz").sentence
    )


@pytest.mark.parametrize("number", [0, -1])
def test_too_few(cli, run, number) -> None:
    assert "-n" in cli("sample", run, "-n", number, "-o", "x.npz").sentence
    assert "--per-class" in cli("sample", run, "--per-class", number, "-o", "x.npz").sentence


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.png", "x/"])
@pytest.mark.parametrize("number", ["-n", "--per-class"])
def test_more_samples_than_fit_into_memory_are_refused(cli, run, name, number) -> None:
    said = cli("sample", run, number, 99_999_999_999, "-o", name).sentence
    assert re.search(r"9,999,99\d (images|samples) need [0-9,.]+ GiB of memory", said) and "Ask for fewer" in said
    assert not Path(name).exists()


def test_places_that_cannot_be_written(cli, run) -> None:
    Path("file").write_text("")
    Path("folder.png").mkdir()
    for target in ("file/x.png", "file/x.npz", "/proc/x.npz", "/proc/x/", "folder.png"):
        assert f"-o {target.rstrip('/')}" in cli("sample", run, "-o", target).sentence
    assert "not an empty folder" in cli("sample", run, "-o", "file").sentence
    assert ".png, a .svg, an .npz, a .csv, or a folder/" in cli("sample", run, "-o", "grid.jpeg").sentence
    assert "Missing option '-o'" in cli("sample", run).sentence


def test_what_is_no_run(cli, tmp_path) -> None:
    assert "there is no run folder nowhere" in cli("sample", "nowhere", "-o", "x.npz").sentence
    Path("empty").mkdir()
    assert "empty is not a run folder" in cli("sample", "empty", "-o", "x.npz").sentence
