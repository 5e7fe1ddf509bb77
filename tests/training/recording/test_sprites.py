"""Sprites: which steps are saved, what is in a sheet, and that saving them changes nothing else of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
from PIL import Image

from ganherd.recipe import recipe_file
from ganherd.runs.series import sprite_files
from ganherd.training.recording.preview import Preview
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError
from ganherd.viz import sprite_sheet


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def saved(run: Path) -> list[int]:
    return list(sprite_files.saved_sheets(run / "sprites"))


@pytest.mark.parametrize("most", [2, 3, 7, 200])
def test_at_most_so_many_steps_are_saved_and_they_are_evenly_spread(most: int) -> None:
    steps: list[int] = []
    for step in range(0, 20_001, 50):
        if sprite_files.is_saved_at(step, 50, most):
            every = sprite_files.interval(step, 50, most)
            steps = [*(earlier for earlier in steps if earlier % every == 0), step]
        assert len(steps) < most and steps[0] == 0
        assert len(set(np.diff(steps))) <= 1
    assert len(steps) >= most / 2 - 1


def test_a_run_saves_its_first_its_last_and_evenly_spread_steps(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "31steps", sprites=6))
    assert saved(tmp_path / "run") == [0, 12, 24, 31]
    index = sprite_files.read_index(tmp_path / "run" / "sprites")
    assert index is not None and index.members == 3 and index.labels == ["0", "1", "2"] and index.samples == 16


@pytest.mark.further
def test_a_longer_run_has_the_sprites_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "40steps", sprites=6)
    tiny_runs.train(tmp_path / "whole", settings)
    tiny_runs.train(tmp_path / "halves", recipes.noise_recipe(tmp_path, "19steps", sprites=6))
    assert saved(tmp_path / "halves") == [0, 6, 12, 18, 19]
    tiny_runs.resume(tmp_path / "halves", "40steps")
    whole, halves = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "sprites").iterdir()}
        for name in ("whole", "halves")
    )
    assert whole == halves


@pytest.mark.further
def test_sprites_change_nothing_else(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "with", recipes.noise_recipe(tmp_path, net="wcgan", sprites=200))
    tiny_runs.train(tmp_path / "without", recipes.noise_recipe(tmp_path, net="wcgan", sprites=0))
    assert saved(tmp_path / "with") and not (tmp_path / "without" / "sprites").exists()
    (tmp_path / "with" / "recipe.yaml").write_bytes((tmp_path / "without" / "recipe.yaml").read_bytes())
    run_files.assert_same_run(tmp_path / "with", tmp_path / "without", sprites=False)


def test_a_sheet_shows_the_samples_of_each_member(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    prepared = assemble(recipe_file.load(recipes.noise_recipe(tmp_path)))
    images = Preview(prepared).generate(16).float() * prepared.dataset.scale + prepared.dataset.offset
    expected = images.round().clamp(0, 255).to(int).numpy()  # [3, 16, 1, 8, 8] of fresh weights
    with Image.open(tmp_path / "run" / "sprites" / "step-00000000.webp") as image:
        sheet = np.asarray(image.convert("L")).astype(int)
    assert sheet.shape == (2 * 32, 2 * 32)  # two members in a row, 4 × 4 samples each
    for member, (row, column) in enumerate([(0, 0), (0, 32), (32, 0)]):
        for sample in range(16):
            top, left = row + 8 * (sample // 4), column + 8 * (sample % 4)
            assert np.abs(sheet[top : top + 8, left : left + 8] - expected[member, sample, 0]).max() <= 1


def test_points_are_saved_as_numbers(tmp_path: Path) -> None:
    settings = recipes.tiny_recipe(
        "ring8",
        data={"partition": "all"},
        herd={"members": 2},
        train={"budget": "4steps"},
        run={"record_every": 2, "sprites": None},
    )
    settings["nets"] = {"latent": 4, "generator": {"name": "toy"}, "discriminator": {"name": "toy"}}
    tiny_runs.train(tmp_path / "run", settings)
    index = sprite_files.read_index(tmp_path / "run" / "sprites")
    assert index is not None and index.kind == "points" and index.low[0] < 0 < index.high[0]
    assert saved(tmp_path / "run") == [0, 2, 4]
    points = json.loads((tmp_path / "run" / "sprites" / "step-00000004.json").read_text())
    assert np.array(points).shape == (2, 64, 2) and np.isfinite(points).all()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64), (3, 256, 128)])
@pytest.mark.parametrize("members", [1, 10, 256, 1000, 5000])
def test_two_hundred_sheets_of_noise_fit_two_hundred_megabytes(members: int, shape: tuple[int, int, int]) -> None:
    layout = sprite_sheet.plan_sheet(members, shape, sprite_files.MOST_BYTES // 200)
    size = (members, layout.samples, shape[0], layout.height, layout.width)
    noise = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    content = sprite_sheet.webp(sprite_sheet.draw_sprites(noise, layout))
    assert 200 * len(content) <= sprite_files.MOST_BYTES
    with Image.open(io.BytesIO(content)) as image:
        side = layout.side
        assert image.width == layout.columns * side * layout.width
        assert image.height == -(-members // layout.columns) * side * layout.height
    assert max(layout.height, layout.width) <= 32 and layout.height / layout.width == pytest.approx(
        shape[1] / shape[2], rel=0.1
    )


def test_one_sprite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run.sprites must be 0 or at least 2"):
        recipe_file.load("digits-wcgan", ["run.sprites=1"])


def test_a_damaged_index_is_no_index(tmp_path: Path) -> None:
    assert sprite_files.read_index(tmp_path) is None
    for text in ("", "[]", '{"kind": "images"}', '{"kind": "code", "names": ["a"], "labels": [null], "samples": 1}'):
        (tmp_path / "index.json").write_text(text)
        assert sprite_files.read_index(tmp_path) is None
    (tmp_path / "step-00000050.webp").write_bytes(b"")
    (tmp_path / "step-1.webp").write_bytes(b"")
    assert list(sprite_files.saved_sheets(tmp_path)) == [50]
