"""Mode coverage counts what its protocol says, on points whose modes are known."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.data.readers.synthetic import stack_digits
from ganherd.metrics.modes import (
    POINTS,
    Modes,
    coverage,
    coverages,
    labelled_modes,
    measure,
    modes_of,
    reverse_kl,
    toy_modes,
)
from ganherd.metrics.stacked_modes import stacked_counts, stacked_coverage
from ganherd.util.errors import UserError


def draw(modes: Modes, n: int, only: list[int] | None = None, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    k = rng.choice(only if only is not None else len(modes.means), n)
    return modes.means[k] + modes.stds[k] * rng.standard_normal((n, modes.means.shape[1]))


@pytest.mark.parametrize(("name", "modes"), [("ring8", 8), ("grid25", 25)])
def test_perfect_samples_capture_all_at_the_quality_that_a_gaussian_has(name: str, modes: int) -> None:
    """A 2-D Gaussian has 1 - exp(-9/2) = 98.9 % of its points within three standard deviations."""
    found = coverage(draw(toy_modes(name), 20_000), toy_modes(name))
    assert found.captured == modes == found.represented.sum()
    assert found.high_quality == pytest.approx(1 - math.exp(-4.5), abs=0.003)
    assert found.reverse_kl is not None and found.reverse_kl < 2 * (modes - 1) / (2 * 20_000) + 1e-3
    assert found.counts.sum() == round(found.high_quality * found.samples)


def test_lost_modes_are_lost_and_the_reverse_kl_is_the_logarithm() -> None:
    grid = toy_modes("grid25")
    found = coverage(np.repeat(grid.means[:5], 100, 0), grid)
    assert found.captured == 5 and found.high_quality == 1
    assert found.reverse_kl == pytest.approx(math.log(5))


def test_the_loop_of_the_protocol_gives_the_same() -> None:
    """Point by point, as PacGAN's evaluation counts them."""
    rng = np.random.default_rng(1)
    modes = Modes(rng.normal(size=(6, 2)), rng.uniform(0.1, 0.4, (6, 2)), np.full(6, 1 / 6), "made up")
    x = rng.normal(size=(500, 2))
    counts = [0] * 6
    for point in x:
        far = [math.sqrt((((point - m) / s) ** 2).sum()) for m, s in zip(modes.means, modes.stds, strict=True)]
        if min(far) < 3:
            counts[far.index(min(far))] += 1
    found = coverage(x, modes)
    assert found.counts.tolist() == counts and found.captured == sum(c > 0 for c in counts)
    p = np.array(counts) / sum(counts)
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    assert found.reverse_kl == pytest.approx(math.log(6) - entropy)


def test_junk_and_nan_capture_nothing() -> None:
    ring = toy_modes("ring8")
    for junk in (np.zeros((10, 2)), np.full((10, 2), np.nan), np.full((10, 2), 1e30)):
        found = coverage(junk, ring)
        assert found.captured == 0 and found.high_quality == 0 and found.reverse_kl is None
        assert "reverse KL –" in str(found)


def test_a_mode_that_only_has_the_tails_of_its_neighbour_is_not_represented() -> None:
    modes = Modes(np.array([[0.0, 0.0], [2.0, 0.0]]), np.full((2, 2), 0.5), np.array([0.5, 0.5]), "touching")
    found = coverage(draw(modes, 2500, only=[0]), modes)
    assert found.captured == 2 and found.represented.tolist() == [True, False]


def test_the_ring_is_stated() -> None:
    assert "radius 1, std 0.01" in toy_modes("ring8").about and "std 0.05" in toy_modes("grid25").about


def test_labels_give_the_modes_of_other_points(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [100, 100, 200])
    x = np.array([[0, 0], [10, 0], [0, 10]])[y] + np.array([0.2, 0.4]) * rng.standard_normal((400, 2))
    modes = labelled_modes(x, y, "three")
    assert np.abs(modes.means - [[0, 0], [10, 0], [0, 10]]).max() < 0.1
    assert np.abs(modes.stds - [0.2, 0.4]).max() < 0.06
    assert modes.weights.tolist() == [0.25, 0.25, 0.5]
    with pytest.raises(UserError, match="needs 3"):
        labelled_modes(x[:102], y[:102], "few")


def test_r15_keeps_its_modes_when_it_is_trained_on_a_hundred_points() -> None:
    from ganherd.data.dataset import load
    from ganherd.recipe.schema import DataConfig

    modes = modes_of(load(DataConfig(source="r15", points=100)))
    assert "600 points" in modes.about and len(modes.means) == 15
    assert np.abs(modes.means - [10.0, 10.06]).sum(1).min() < 0.1
    assert 0.28 < modes.stds.mean() < 0.33


def test_images_have_no_modes_to_capture(digits: Any) -> None:
    with pytest.raises(UserError, match="digits has none"):
        modes_of(digits)


def test_a_mixture_and_its_members_have_as_many_samples_each(ring: Any, replay: Any) -> None:
    mixture = replay(ring)
    mixture.members = 8  # its members stand for one mode each
    modes = labelled_modes(ring.x, ring.y, "ring")
    alone = {str(m): dataclasses.replace(mixture, weights=np.eye(8)[m]) for m in range(8)}
    each = coverages({"all": mixture, **alone}, modes, 400)
    whole = each.pop("all")
    assert whole.captured == 8 and whole.samples == 400
    assert [found.captured for found in each.values()] == [1] * 8 and {f.samples for f in each.values()} == {400}


def test_the_score_says_which_modes_and_how_many_points(ring: Any, replay: Any) -> None:
    from ganherd.features.material import ScoringContext

    mixture = replay(ring)
    mixture.members = 8
    found = measure(ScoringContext(mixture, ring, 10))
    assert found["of"] == 8 and found["samples"] == POINTS and "radius 1, std 0.01" in found["modes"]
    assert list(found["per_member"]) == [str(m) for m in range(8)]


def test_reverse_kl_against_weights_that_differ() -> None:
    assert reverse_kl(np.array([1, 3]), np.array([0.25, 0.75])) == pytest.approx(0)
    assert reverse_kl(np.array([4, 0]), np.array([0.25, 0.75])) == pytest.approx(math.log(4))


# -- stacked MNIST ------------------------------------------------------------------------------------------------


def _marked(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Images whose first pixel says their digit."""
    y = np.arange(n) % 10
    x = np.random.default_rng(0).integers(0, 256, (n, 1, 4, 4), np.uint8)
    x[:, 0, 0, 0] = y
    return x, y


def _read(x: np.ndarray) -> np.ndarray:
    assert x.shape[1:] == (1, 4, 4) and x.dtype == np.uint8
    return x[:, 0, 0, 0].astype(np.int64)


def test_stacked_digits_are_three_digits_and_their_mode_is_their_number() -> None:
    x, y = _marked()
    stacked, mode = stack_digits(x, y, 3000, seed=1)
    assert stacked.shape == (3000, 3, 4, 4) and stacked.dtype == np.uint8
    assert np.array_equal(stacked[:, :, 0, 0] @ np.array([100, 10, 1]), mode)
    assert all(any(np.array_equal(stacked[0, c], digit[0]) for digit in x) for c in range(3))
    assert np.array_equal(stack_digits(x, y, 3000, seed=1)[0], stacked)
    assert not np.array_equal(stack_digits(x, y, 3000, seed=2)[0], stacked)
    assert len(np.unique(mode)) > 900


def test_real_stacks_cover_a_thousand_modes_with_the_kl_of_chance() -> None:
    stacked, mode = stack_digits(*_marked(), 26_000)
    found = stacked_coverage(stacked, _read, block=999)
    assert found.captured == 1000 and found.samples == 26_000
    assert found.kl == pytest.approx(found.by_chance, rel=0.2) and found.by_chance == pytest.approx(0.0192, abs=1e-4)
    assert np.array_equal(found.counts, np.bincount(mode, minlength=1000))


def test_collapsed_stacks() -> None:
    stacked, _ = stack_digits(*_marked(), 100)
    found = stacked_coverage(np.repeat(stacked[:1], 50, 0), _read)
    assert found.captured == 1 and found.kl == pytest.approx(math.log(1000))
    assert stacked_counts(np.repeat([2, 0], 500)).kl == pytest.approx(math.log(2))


def test_wrong_stacks_are_refused() -> None:
    x, y = _marked()
    with pytest.raises(UserError, match="grey images"):
        stack_digits(np.repeat(x, 3, 1), y)
    with pytest.raises(UserError, match="from 0 to 9"):
        stack_digits(x, y - 1)
    with pytest.raises(UserError, match="stacked digits"):
        stacked_coverage(x, _read)
    with pytest.raises(UserError, match="at least one"):
        coverage(x[:0, 0, 0, :2], replace(toy_modes("ring8")))
