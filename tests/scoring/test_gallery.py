"""The pictures of a run: those that fit its data, of this mixture, in its folder; and nothing else from there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipes import tiny_data, tiny_recipe
from tiny_runs import skip_products

import ganherd
from ganherd.data.dataset import load as load_data
from ganherd.runs.folder import RunFolder
from ganherd.scoring import gallery, score_run


def trained(folder: Path, recipe: dict[str, Any]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        skip_products(patch)
        ganherd.train(recipe, run=folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    return trained(folder / "images", tiny_recipe(tiny_data(folder / "small.npz")))


def pictures(run: Path) -> set[str]:
    return {path.name for path in (run / "pictures").iterdir()}


@pytest.mark.further
def test_scoring_makes_them_once(run: Path) -> None:
    told: list[str] = []
    score_run(run, samples=60, progress=told.append)
    names = ("map", "map-classes", "classes", "neighbours")
    assert pictures(run) == {"about.json", *(f"{name}.{end}" for name in names for end in ("png", "svg"))}
    assert any("t-SNE of 64 real and 64 generated" in line for line in told)  # told before it takes its time
    svg = (run / "pictures" / "map.svg").read_text()
    assert "data (64)" in svg and "generated (64)" in svg
    assert ">zero<" in (run / "pictures" / "map-classes.svg").read_text()
    assert "share of samples" in (run / "pictures" / "classes.svg").read_text()
    before = {path: path.stat().st_mtime_ns for path in (run / "pictures").iterdir()}
    told.clear()
    score_run(run, samples=60, progress=told.append)
    assert not any("t-SNE" in line for line in told)
    assert before == {path: path.stat().st_mtime_ns for path in (run / "pictures").iterdir()}


def test_one_score_by_name_draws_nothing(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("pictures")))
    score_run(copy, ["diversity"], samples=30)
    assert not (copy / "pictures").exists()


@pytest.mark.further
def test_a_later_mixture_has_its_own(run: Path) -> None:
    made, data = ganherd.load(run), load_data(RunFolder.open(run).recipe.data)
    gallery.make(run, made, data, again=True)
    shown = gallery.read(run, made.step)
    assert [one.name for one in shown] == ["map", "map-classes", "classes", "neighbours"]
    assert "seed 0" in shown[0].caption and re.search(r"features of classifier \(small", shown[0].caption)
    assert gallery.read(run, made.step + 1) == [] and gallery.read(run, None) == []
    stale = run / "pictures" / "coverage.png"
    stale.write_bytes(shown[0].png)
    made.step += 1
    gallery.make(run, made, data)
    assert not stale.exists() and len(gallery.read(run, made.step)) == 4


@pytest.mark.further
def test_points_have_their_modes(tmp_path: Path) -> None:
    recipe = tiny_recipe("ring8", nets={"latent": 2, "generator": "toy", "discriminator": "toy"})
    recipe["data"] |= {"partition": "all", "points": 64}
    run = trained(tmp_path / "ring", recipe | {"herd": {"members": 9}})
    found = score_run(run, samples=50)
    assert pictures(run) == {"about.json", "coverage.png", "coverage.svg"}
    text = (run / "pictures" / "coverage.svg").read_text()
    assert "mixture:" in text and "member 6:" in text and "member 7:" not in text
    (shown,) = gallery.read(run, ganherd.load(run).step)
    assert "first 7 of 9 members" in shown.caption and "2,500 samples" in shown.caption
    assert found["modes"]["of"] == 8 and found["modes"]["samples"] == 2500  # measured without being asked for
    assert len(found["modes"]["per_member"]) == 9


@pytest.mark.parametrize("content", [b"", b"<svg onload=1>", b"\x89PNG but not one"])
def test_what_is_no_png_is_not_shown(run: Path, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "map.png").write_bytes(content)
    (folder / "about.json").write_text(json.dumps({"of": {"step": 3}, "captions": {"map": "x", "../map": "y"}}))
    assert gallery.read(tmp_path, 3) == []
    for broken in ("[]", "{", '{"of": 3, "captions": 4}'):
        (folder / "about.json").write_text(broken)
        assert gallery.read(tmp_path, 3) == []


def test_what_cannot_be_drawn_is_told_and_the_rest_comes(run: Path, tmp_path: Path) -> None:
    import dataclasses

    made, data = ganherd.load(run), load_data(RunFolder.open(run).recipe.data)
    tiny = dataclasses.replace(data, x=data.x[:2], y=data.y[:2])
    told: list[str] = []
    written = gallery.make(tmp_path, made, tiny, reference=_pixels(tiny), progress=told.append)
    assert [path.name for path in written] == ["neighbours.png", "neighbours.svg"]
    assert any("left out, a t-SNE map needs at least 5 rows" in line for line in told)
    assert np.asarray(written[0].read_bytes()[:4] == b"\x89PNG").all()


def _pixels(data: Any) -> Any:
    from ganherd.features.real_features import RealFeatures

    return RealFeatures(data, "pixels")


@pytest.mark.further
def test_a_network_that_is_missing_or_heavy_is_not_waited_for(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from ganherd.features.real_features import RealFeatures

    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    made, data = ganherd.load(run), load_data(RunFolder.open(run).recipe.data)
    gallery.make(tmp_path, made, data, reference=RealFeatures(data, "inception"))
    assert "classifier" in gallery.read(tmp_path, made.step)[0].caption
