"""Stacked digits as a score of runs and sets, and as data to train on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.data.dataset import Dataset, load
from ganherd.data.readers import synthetic as stacks
from ganherd.data.readers.download import list_sources
from ganherd.features.material import ScoringContext
from ganherd.metrics.stacked_modes import measure
from ganherd.recipe.schema import DataConfig
from ganherd.scoring import known_metrics, score, score_sets
from ganherd.scoring.two_sets import GivenSet
from ganherd.util.errors import UserError


@pytest.fixture(scope="module")
def stacked() -> Dataset:
    """Stacks of scikit-learn's digits, which their own classifier reads."""
    digits = load(DataConfig(source="digits"))
    x, _ = stacks.stack_digits(digits.x, digits.y, 600)
    held, _ = stacks.stack_digits(digits.x_test, digits.y_test, 3000, seed=1)
    none = np.full(len(x), -1)
    return Dataset("stacks", x, none, held, np.full(len(held), -1), (), 127.5, 127.5)


def given(x: np.ndarray) -> Any:
    return GivenSet("made", x, np.full(len(x), -1), ())


def test_held_out_stacks_show_most_modes_and_a_collapsed_set_one(stacked: Dataset) -> None:
    good = score(given(stacked.x_test), stacked, ["stacked-modes"], samples=3000)["stacked_modes"]
    assert 930 <= good["value"] <= 970 and good["of"] == 1000  # 3,000 draws show 950 of 1,000 by chance
    assert good["kl"] == pytest.approx(good["by_chance"], rel=0.4) and good["samples"] == 3000
    assert "26,000" in good["warning"] and good["held_out_accuracy"] > 0.95
    bad = score(given(np.repeat(stacked.x_test[:1], 50, 0)), stacked, ["stacked-modes"], samples=50)["stacked_modes"]
    assert bad["value"] == 1 and bad["kl"] == pytest.approx(np.log(1000))


def test_a_mixture_is_read_from_as_many_samples_as_the_setting_has(stacked: Dataset, replay: Any) -> None:
    labelled = dataclasses.replace(stacked, y=np.zeros(len(stacked.x), np.int64), labels=("any",))
    mixture = dataclasses.replace(replay(labelled), label_of=np.array([-1, -1]), weights=np.array([0.5, 0.5]))
    found = measure(ScoringContext(mixture, stacked, 20, per="member"), samples=500)
    assert found["samples"] == 500 and "warning" not in found and mixture.calls[0] == (500, None)
    assert found["per_member_samples"] == {"0": 500, "1": 500} and mixture.calls[1:] == [(500, None)] * 2  # not 20
    assert set(found["per_member_kl"]) == {"0", "1"} and all(kl > 0 for kl in found["per_member_kl"].values())
    assert found["mean_member"] == np.mean(list(found["per_member"].values())) and found["best_member"] in (0, 1)


def test_a_file_is_scored(stacked: Dataset, tmp_path: Path) -> None:
    for name, x in (("real.npz", stacked.x), ("fake.npz", stacked.x_test[:100])):
        np.savez(tmp_path / name, x=x)
    found = score_sets(str(tmp_path / "real.npz"), str(tmp_path / "fake.npz"), ["stacked_modes"])
    assert found["stacked_modes"]["samples"] == 100 and 85 <= found["stacked_modes"]["value"] <= 100


def test_other_data_is_left_out_with_the_reason(digits: Any, replay: Any) -> None:
    found = score(replay(digits), digits, ["stacked_modes"], samples=10)
    assert "three channels" in found["skipped"]["stacked_modes"]


# -- as data ------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    monkeypatch.setattr(stacks, "TRAIN", 300)
    monkeypatch.setattr(stacks, "HELD_OUT", 40)
    return tmp_path


def test_a_recipe_may_name_them(home: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 10
    x = rng.integers(0, 100, (60, 28, 28), dtype=np.uint8)
    np.savez(home / "mnist.npz", x_train=x, y_train=y, x_test=x[:20] + 100, y_test=y[:20])
    data = load(DataConfig(source="stacked-mnist"))
    assert data.shape == (3, 28, 28) and (len(data.x), len(data.x_test)) == (300, 40) and data.labels == ()
    assert data.x.max() < 100 <= data.x_test.min()  # held-out stacks are of held-out digits
    assert any("held-out digits" in note for note in data.notes)
    assert load(DataConfig(source="stacked-mnist")).digest == data.digest
    assert "stacked_modes" in known_metrics(None, "score", data) and "stacked_modes" not in known_metrics(None, "score")


def test_without_mnist_it_is_said_how_to_get_it(home: Path) -> None:
    with pytest.raises(UserError, match="ganherd data get mnist"):
        load(DataConfig(source="stacked-mnist"))
    row = next(row for row in list_sources() if row["name"] == "stacked-mnist")
    assert row["present"] is False and row["where"].endswith("mnist.npz")


@pytest.mark.data("mnist")
@pytest.mark.long
def test_real_stacks_of_mnist_show_a_thousand_modes() -> None:
    found = score_sets("stacked-mnist", "stacked-mnist:train", ["stacked_modes"], samples=26_000)["stacked_modes"]
    assert found["value"] == 1000 and found["kl"] < 0.04 and found["samples"] == 26_000
