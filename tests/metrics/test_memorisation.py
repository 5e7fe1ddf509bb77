"""Memorisation is told from fresh data, from smooth samples and from chance."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.metrics.memorisation import (
    BY_CHANCE,
    NearestRows,
    _auc_error,
    below,
    draw_neighbours,
    measure,
    memorisation,
    nearest,
)
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.viz import pictures


def brute(x: np.ndarray, training: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = (rows.reshape(len(rows), -1).astype(float) for rows in (x, training))
    distance = np.sqrt(((a[:, None] - b) ** 2).sum(-1))
    order = distance.argsort(1, kind="stable")[:, :k]
    return np.take_along_axis(distance, order, 1), order


@pytest.mark.parametrize("budget", [1, 5000, 1 << 27])
def test_neighbours_are_those_of_all_pairs_however_they_are_cut(budget: int) -> None:
    rng = np.random.default_rng(0)
    x, training = rng.integers(0, 256, (23, 1, 5, 5), np.uint8), rng.integers(0, 256, (61, 1, 5, 5), np.uint8)
    found = nearest(x, training, 4, budget)
    distance, index = brute(x, training, 4)
    assert np.allclose(found.distance, distance) and np.array_equal(found.index, index)


def test_large_values_and_copies_lose_no_digits() -> None:
    rng = np.random.default_rng(0)
    training = 1000 + rng.normal(size=(200, 30))
    found = nearest(training[:9] + 1e-3, training, 2)
    assert np.array_equal(found.index[:, 0], np.arange(9))
    assert np.allclose(found.distance[:, 0], 1e-3 * 30**0.5, rtol=0.1)


def test_fewer_training_rows_than_neighbours() -> None:
    found = nearest(np.zeros((2, 3)), np.eye(3), 6)
    assert found.distance.shape == (2, 3) and np.allclose(found.distance, 1)


def measured(x: np.ndarray, training: np.ndarray, held_out: np.ndarray) -> ScoreEntry:
    return memorisation(nearest(x, training), nearest(held_out, training), len(training), "numbers")


def copied(found: ScoreEntry) -> float:
    """The share of copies beyond what chance brings, at least 0."""
    return max(0.0, (found["value"] - BY_CHANCE) / (1 - BY_CHANCE))


def gaussian(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 12))


def test_fresh_data_is_as_chance_has_it() -> None:
    """Over ten draws the statistics stay within a few of their own standard errors."""
    for seed in range(10):
        found = measured(gaussian(500, 3 * seed), gaussian(1000, 3 * seed + 1), gaussian(500, 3 * seed + 2))
        assert abs(found["nearer"] - 0.5) < 3.5 * found["nearer_error"] and 0.01 < found["nearer_error"] < 0.03
        assert abs(found["value"] - BY_CHANCE) < 3.5 * found["error"]
        assert found["ratio"] == pytest.approx(1, abs=0.1) and "warning" not in found


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_copies_are_counted(share: float) -> None:
    training, x = gaussian(1000, 0), gaussian(600, 1)
    n = int(share * len(x))
    x[:n] = training[:n] + 0.05 * gaussian(n, 3)  # nearly the same
    found = measured(x, training, gaussian(600, 2))
    assert copied(found) == pytest.approx(share, abs=0.06)
    assert found["nearer"] == pytest.approx(share + (1 - share) / 2, abs=0.05)


def test_smooth_samples_are_near_to_all_and_copies_of_none() -> None:
    training, x = gaussian(1000, 0), 0.3 * gaussian(600, 1)
    found = measured(x, training, gaussian(600, 2))
    assert found["nearer"] > 0.85 and found["ratio"] < 0.85  # by distance alone they would stand accused
    assert copied(found) < 0.02


def test_digits_and_digits_learnt_by_heart(digits: Any) -> None:
    fresh = measured(digits.x_test[:180], digits.x, digits.x_test[180:])
    heart = measured(digits.x[:180], digits.x, digits.x_test[180:])
    assert abs(fresh["value"] - BY_CHANCE) < 4 * fresh["error"] and "only 180 held-out" in fresh["warning"]
    assert heart["value"] == heart["nearer"] == copied(heart) == 1 and heart["ratio"] == 0


def test_the_score_of_samples(digits: Any, replay: Any) -> None:
    from ganherd.features.material import MetricSkipped, ScoringContext

    found = measure(ScoringContext(replay(digits), digits, 300))
    # this mixture replays held-out rows, which are no copies of training rows
    assert found["samples"] == 300 and found["network"] == "pixels" and found["value"] < 0.15
    assert found["held_out"] == len(digits.x_test) and found["by_chance"] == BY_CHANCE
    bare = dataclasses.replace(digits, x_test=digits.x_test[:0], y_test=digits.y_test[:0])
    with pytest.raises(MetricSkipped, match="held-out"):
        measure(ScoringContext(replay(digits), bare, 30))


def test_ties_count_half() -> None:
    a, b = np.array([1.0, 1.0, 2.0]), np.array([1.0, 3.0])
    pairs = [(v < w) + (v == w) / 2 for v in a for w in b]
    assert below(a, b) == pytest.approx(np.mean(pairs))
    assert NearestRows(np.array([[0.0, 0.0], [1.0, 2.0]]), np.zeros((2, 2), int)).relative.tolist() == [0.0, 0.5]


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be compared"):
        nearest(np.zeros((1, 2)), np.zeros((1, 3)))
    with pytest.raises(UserError, match="NaN"):
        nearest(np.full((1, 2), np.nan), np.zeros((3, 2)))
    with pytest.raises(UserError, match="held-out"):
        measured(np.zeros((3, 2)), np.ones((3, 2)), np.zeros((1, 2)))
    with pytest.raises(UserError, match="two training rows"):
        measured(np.zeros((3, 2)), np.ones((1, 2)), np.zeros((5, 2)))


def test_the_picture_shows_the_likeliest_copies_first(digits: Any, tmp_path: Path) -> None:
    x = np.concatenate([digits.x_test[:20], digits.x[:2]])
    found = nearest(x, digits.x)
    sheet = draw_neighbours(x, digits.x, found, rows=4)
    for name in ("neighbours.png", "neighbours.svg"):
        assert pictures.save(sheet, tmp_path / name).stat().st_size > 500
    # the first row is a copy: the sample's tile and its neighbour's are the same picture
    tile = 56 - 1
    gray = np.asarray(sheet.convert("L"))
    copy = pictures.to_image(digits.x[0]).resize((tile + 1, tile + 1), 0)
    wanted = np.asarray(copy)
    places = [
        (i, j)
        for i in range(20, 60)
        for j in range(gray.shape[1] - tile - 1)
        if gray[i : i + 56 : 11, j : j + 56 : 11].shape == wanted[::11, ::11].shape
        and (gray[i : i + 56, j : j + 56] == wanted).all()
    ]
    assert len(places) == 2


@pytest.mark.parametrize(("auc", "samples", "held_out"), [(0.8, 600, 60), (0.8, 60, 600), (0.95, 50, 1000)])
def test_the_error_of_nearer_is_that_of_repeated_draws(auc: float, samples: int, held_out: int) -> None:
    """The formula of Hanley and McNeil is exact for exponential distributions; both numbers of rows matter."""
    rng = np.random.default_rng(0)
    scale = auc / (1 - auc)
    seen = [below(rng.exponential(1, samples), rng.exponential(scale, held_out)) for _ in range(2000)]
    assert np.mean(seen) == pytest.approx(auc, abs=0.01)
    assert _auc_error(auc, samples, held_out) == pytest.approx(np.std(seen), rel=0.08)


def test_rows_that_are_equally_far_have_equal_distances() -> None:
    """Subtracting a centre that float32 cannot hold would make distances differ that are the same."""
    training = np.array([[0.0], [3.0], [5.0], [6.0], [7.0], [250.0]], np.float32)
    near = nearest(np.array([[4.0]]), training, 5)
    assert near.distance.tolist() == [[1.0, 1.0, 2.0, 3.0, 4.0]]
    eighths = np.random.default_rng(0).integers(0, 80, (300, 3)) / 8 + 1000.0
    squares = nearest(eighths[:50], eighths[50:], 4).distance ** 2 * 64
    assert np.allclose(squares, np.rint(squares), rtol=0, atol=1e-9)


def test_warnings_count_one_and_several() -> None:
    training, held_out = gaussian(300, 0), gaussian(30, 1)
    assert measured(gaussian(1, 2), training, held_out)["warning"].startswith("1 sample is few to find copies among")
    assert "only 30 held-out rows" in measured(gaussian(200, 2), training, held_out)["warning"]
