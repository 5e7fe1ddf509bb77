"""`ganherd sample --per-class` makes a labelled data set: of every script, whole or not there, and fit to train on again."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from recipes import LABELS, tiny_data, tiny_recipe
from run_files import arrays

import ganherd
from ganherd.mixture import image_folder, label_weights, sample_files
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.api import Run

NAMES = ("../猫", "..:猫", "ΣΩ ü")  # two that look the same once they are safe


@pytest.fixture(scope="module")
def odd_run(tmp_path_factory) -> Path:
    """A run whose labels are no names of folders."""
    folder = tmp_path_factory.mktemp("odd")
    recipe = tiny_recipe(tiny_data(folder / "odd.npz", NAMES), run={"weights": "uniform"})
    return trained(recipe, folder / "run").path


def trained(recipe: dict[str, Any], path: Path) -> Run:
    """A run that nobody scores."""
    return ganherd.train(recipe, ["train.budget=2steps", "run.scores=false"], run=path, quiet=True)


def images_in(folder: Path) -> dict[str, np.ndarray]:
    """Images of each class folder, by number."""
    return {
        one.name: np.stack([np.asarray(Image.open(path)) for path in sorted(one.iterdir())]) for one in folder.iterdir()
    }


def test_a_folder_holds_what_an_npz_holds(cli, run) -> None:
    answer = cli("sample", run, "--per-class", 130, "-o", "images/", "--json")
    assert json.loads(answer.out) == {"output": "images", "samples": 390, "seed": 0}
    cli("sample", run, "--per-class", 130, "-o", "out.npz", "-q")
    kept = arrays("out.npz")
    folders = images_in(Path("images"))
    assert set(folders) == set(LABELS)
    for k, label in enumerate(LABELS):
        assert np.array_equal(folders[label], kept["x"][kept["y"] == k, 0])
    assert sorted(p.name for p in Path().iterdir()) == ["images", "out.npz"]


def test_labels_of_any_script_come_back_and_can_be_trained_on(cli, odd_run) -> None:
    assert cli("sample", odd_run, "--per-class", 12, "-o", "images/").code == 0
    names = sorted(p.name for p in Path("images").iterdir())
    assert names == sorted(["_猫", "_猫 (2)", "ΣΩ ü"])
    facts = json.loads(cli("data", "inspect", "images", "--json").out)
    assert {row["name"]: row["train"] + row["held_out"] for row in facts["classes"]} == dict.fromkeys(names, 12)
    assert facts["notes"] == []
    again = trained(tiny_recipe("images"), Path("again"))
    assert again.mixture.labels == tuple(row["name"] for row in facts["classes"])


def test_names_are_different_on_every_file_system() -> None:
    labels = ["a", "A", "a ", "é", "é", ".a", "con", "thumbs.db", "", "x" * 500, "x" * 400, "\x1b[31m", "a/../b"]
    names = image_folder.folder_names(labels)
    assert len({name.casefold() for name in names}) == len(labels)
    assert all(name and not name.startswith(".") and len(name.encode()) < 143 for name in names)
    assert not any(c in name for name in names for c in "/\\\x1b")
    assert "thumbs.db" not in names and "con" not in names


@pytest.mark.parametrize("channels", [1, 3])
def test_png_files_hold_the_very_pixels(channels: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, channels, 7, 4), np.uint8)
    for image, encoded in zip(x, image_folder.encode(x), strict=True):
        with Image.open(io.BytesIO(encoded)) as read:
            read.load()
            assert read.mode == {1: "L", 3: "RGB"}[channels]
            found = np.asarray(read)
        assert np.array_equal(found, image[0] if channels == 1 else image.transpose(1, 2, 0))


def test_other_channels_are_refused_rather_than_lost(tmp_path) -> None:
    with pytest.raises(UserError, match="2 channels"):
        image_folder.FolderWriter(tmp_path / "out", ("a",), (2, 8, 8))


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_half_way_leaves_nothing(run, tmp_path, there: bool) -> None:
    made = ganherd.load(run)
    folder = tmp_path / "images"
    if there:
        folder.mkdir()

    def broken(*arguments: object) -> Iterator[np.ndarray]:
        yield np.zeros((3, 1, 8, 8), np.uint8)
        assert list(folder.rglob("*")), "nothing has begun yet"
        raise OSError(28, "No space left on device")

    made.images = broken
    with pytest.raises(UserError, match="No space left on device"):
        sample_files.save(made, f"{folder}/", per_class=5)
    assert folder.exists() == there and not list(tmp_path.rglob("*.png"))
    assert [p.name for p in tmp_path.rglob("*")] == ["images"] * there


def test_a_killed_sampling_is_named(cli, run) -> None:
    Path("images/.unfinished").mkdir(parents=True)
    assert "left by a sampling that was killed" in cli("sample", run, "-o", "images/").sentence


def test_a_file_that_cannot_be_written_stays_as_it_was(cli, run, monkeypatch) -> None:
    Path("out.npz").write_bytes(b"old")
    monkeypatch.setattr(np, "savez", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "No space left on device" in cli("sample", run, "-o", "out.npz", "-q").sentence
    assert Path("out.npz").read_bytes() == b"old" and len(list(Path().iterdir())) == 1


def test_weights_at_sampling_time(cli, odd_run) -> None:
    def counts(*words: object) -> list[int]:
        assert cli("sample", odd_run, "-n", 4000, "-o", "out.npz", "-q", *words).code == 0
        return [Counter(arrays("out.npz")["y"].tolist())[k] for k in range(3)]

    assert counts() == pytest.approx([1333] * 3, abs=120)  # as its recipe says
    assert counts("--weights", "uniform") == counts()
    assert counts("--weights", "data") == pytest.approx([2000, 1000, 1000], abs=120)
    assert counts("--weights", "ΣΩ ü=1,../猫=3") == pytest.approx([3000, 0, 1000], abs=120)
    assert "no label 'dog'" in cli("sample", odd_run, "-o", "x.npz", "--weights", "dog=1").sentence
    for wrong in ("dog", "=1", "a=-1", "a=x", "a=nan", ""):
        assert "write data, uniform" in cli("sample", odd_run, "-o", "x.npz", f"--weights={wrong}").sentence
    assert "above zero" in cli("sample", odd_run, "-o", "x.npz", "--weights", "a=0").sentence
    for other in (["--per-class", 3], ["--label", "0"]):
        assert "--weights" in cli("sample", odd_run, "-o", "x.npz", "--weights", "uniform", *other).sentence


def test_members_of_one_label_keep_their_shares(run) -> None:
    made = ganherd.load(run)
    made.label_of, made.weights = np.array([0, 0, 1]), np.array([0.3, 0.1, 0.6])
    made.labels = ("a", "b")
    assert label_weights.weighted(made, "uniform", run).weights == pytest.approx([0.375, 0.125, 0.5])
    assert label_weights.weighted(made, {"b": 2.0}, run).weights == pytest.approx([0, 0, 1])
    made.label_of = np.array([-1, -1, -1])
    with pytest.raises(UserError, match="generate one label each"):
        label_weights.weighted(made, "uniform", run)
    with pytest.raises(UserError, match="not all members of this mixture generate one label"):
        sample_files.draw(made, per_class=2)
