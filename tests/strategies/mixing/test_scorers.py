"""Mixture weights: the closed form is the pooled features' score, and the ES is the plain one, member by member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ganherd.features.extract import Moments, moments
from ganherd.herd import rng as streams
from ganherd.metrics.distributions.histogram import class_histogram, total_variation
from ganherd.metrics.frechet import distance
from ganherd.metrics.kid import discrepancy
from ganherd.strategies.cellular import topology
from ganherd.strategies.mixing.kernel_score import KernelScore, RealSide
from ganherd.strategies.mixing.scorers import FrechetScore, VariationScore, class_shares, summarise
from ganherd.strategies.mixing.weight_evolution import entries, evolve, uniform
from ganherd.util.errors import UserError


def generators(count: int, n: int, features: int, seed: int = 0) -> Tensor:
    """[G, n, F]: each with a centre and a shape of its own."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(count, features, features, generator=rng, dtype=torch.float64) / features**0.5
    centre = 2 * torch.randn(count, 1, features, generator=rng, dtype=torch.float64) + 5
    return torch.randn(count, n, features, generator=rng, dtype=torch.float64) @ mix + centre


def data(features: int, n: int = 400, seed: int = 99) -> Moments:
    return moments(generators(1, n, features, seed)[0])


def normals(members: int, width: int, seed: int = 0) -> Callable[[int], Tensor]:
    def draws(generation: int) -> Tensor:
        keys = streams.keys(np.arange(members), seed, generation)
        return streams.draw(keys, (width,), "normal", torch.float64)

    return draws


# -- scores of mixtures -----------------------------------------------------------------------------------------------


def test_generators_of_equal_weight_have_the_distance_of_their_pooled_features() -> None:
    x, real = generators(6, 50, 4), data(4)
    score = FrechetScore(summarise(x), real)
    for members in ([2], [0, 3], [5, 1, 4], [0, 1, 2, 3, 4, 5]):
        table = torch.tensor([members])
        pooled = distance(moments(x[members].reshape(-1, 4)), real)
        assert float(score(uniform(table), table)) == pytest.approx(float(pooled), rel=1e-11)


def test_a_mixtures_distance_is_bit_exact_whatever_is_scored_with_it() -> None:
    """However many generators and mixtures a rank has; with fewer samples than features, roots of zero magnify rounding."""
    x, real = generators(9, 6, 40), data(40)
    table = torch.tensor([[k, (k + 1) % 9, (k + 3) % 9, (k + 6) % 9, (k + 8) % 9] for k in range(9)])
    together = FrechetScore(summarise(x), real)(uniform(table), table)
    for row, expected in zip(table, together, strict=True):
        own = torch.arange(len(row))[None]
        assert FrechetScore(summarise(x[row]), real)(uniform(own), own) == expected


def test_any_weights_have_the_distance_of_the_weighted_features() -> None:
    x, real = generators(3, 40, 5), data(5)
    weights = np.array([0.15, 0.6, 0.25])
    flat, each = x.reshape(-1, 5).numpy(), np.repeat(weights / 40, 40)
    cov = np.cov(flat.T, aweights=each)
    pooled = distance(Moments(torch.from_numpy(each @ flat), torch.from_numpy(cov)), real)
    found = FrechetScore(summarise(x), real)(torch.from_numpy(weights)[None], torch.tensor([[0, 1, 2]]))
    assert float(found) == pytest.approx(float(pooled), rel=1e-11)


def test_weights_that_are_counts_score_close_to_that_many_samples() -> None:
    x, real = generators(2, 4000, 3), data(3)
    table, weights = torch.tensor([[0, 1]]), torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    drawn = distance(moments(torch.cat([x[0, :1000], x[1, :3000]])), real)
    assert float(FrechetScore(summarise(x), real)(weights, table)) == pytest.approx(float(drawn), rel=0.02)


def test_generators_may_have_different_numbers_of_samples() -> None:
    x, real = generators(1, 90, 3)[0], data(3)
    parts = [x[:30], x[30:]]
    table, weights = torch.tensor([[0, 1]]), torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64)
    assert float(FrechetScore(summarise(parts), real)(weights, table)) == pytest.approx(
        float(distance(moments(x), real)), rel=1e-11
    )


def test_more_features_than_samples_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, real = generators(4, 10, 24), data(24)
    score, table = FrechetScore(summarise(x), real), torch.tensor([[0, 1], [2, 3], [1, 3]])
    together = score(uniform(table), table)
    pooled = [float(distance(moments(x[row].reshape(-1, 24)), real)) for row in table]
    assert together.tolist() == pytest.approx(pooled, rel=1e-6)  # roots of eigenvalues that are 0 but for rounding
    monkeypatch.setattr("ganherd.strategies.mixing.scorers._MOMENTS_AT_ONCE", 1)
    assert score(uniform(table), table).tolist() == pytest.approx(together.tolist(), rel=1e-12)


def test_a_distance_holds_one_copy_of_the_moments_that_it_weighs() -> None:
    """With 2,048 features a second copy would take gigabytes."""

    class Large(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out, given = func(*args, **(kwargs or {})), {one.data_ptr() for one in args if isinstance(one, Tensor)}
            self.count += isinstance(out, Tensor) and out.numel() >= 9 * 5 * 16 and out.data_ptr() not in given
            return out

    score = FrechetScore(summarise(generators(9, 30, 4)), data(4))
    table = torch.tensor([[k, (k + 1) % 9, (k + 3) % 9, (k + 6) % 9, (k + 8) % 9] for k in range(9)])
    with Large() as large:
        score(uniform(table), table)
    assert large.count == 1


def test_variation_is_that_of_the_pooled_classes() -> None:
    rng = np.random.default_rng(0)
    predicted = rng.integers(0, 7, (4, 200)) % np.array([[7], [2], [5], [3]])
    real = rng.dirichlet(np.ones(7))
    score = VariationScore(class_shares(torch.from_numpy(predicted), 7), torch.from_numpy(real))
    for members in ([1], [0, 2], [3, 1, 0]):
        table = torch.tensor([members])
        wanted = total_variation(class_histogram(predicted[members].ravel(), 7), real)
        assert float(score(uniform(table), table)) == pytest.approx(wanted, rel=1e-12)


def test_the_kernel_distance_of_mixtures_is_that_of_their_samples_pair_by_pair() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 5, generator=rng) + torch.tensor([0.0, 1.0, 3.0])[:, None, None]
    real = torch.randn(70, 5, generator=rng)
    score = KernelScore(x, RealSide(real, torch.device("cpu")))
    weights, table = (
        torch.tensor([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]]).double(),
        torch.tensor([[0, 1], [2, 0], [1, 2]]),
    )
    found = score(weights, table)

    def kernel(a: Tensor, b: Tensor, same: bool = False) -> float:
        each = [
            ((float(p @ q) / 5) + 1) ** 3 for i, p in enumerate(a) for j, q in enumerate(b) if not (same and i == j)
        ]
        return sum(each) / len(each)

    for value, own, of in zip(found.tolist(), weights.tolist(), table.tolist(), strict=True):
        among = sum(own[i] * own[j] * kernel(x[of[i]], x[of[j]], i == j) for i in range(2) for j in range(2))
        to_data = sum(own[i] * kernel(x[of[i]], real) for i in range(2))
        assert value == pytest.approx(among - 2 * to_data + kernel(real, real, True), rel=1e-5)
    alone = float(discrepancy(x[0, :40].double(), real[:40].double()))
    assert float(KernelScore(x, RealSide(real[:40], torch.device("cpu")))(weights[:1], table[:1])[0]) == pytest.approx(
        alone, rel=1e-5
    )


def test_a_broken_generator_is_infinitely_far_by_kernels_too() -> None:
    x = torch.randn(3, 20, 4)
    x[1, 3] = torch.nan
    score = KernelScore(x, RealSide(torch.randn(30, 4), torch.device("cpu")))
    found = score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double(), torch.tensor([[0, 1], [0, 1]]))
    assert torch.isinf(found[0]) and torch.isfinite(found[1])


def test_a_broken_generator_is_infinitely_far_and_harms_no_other() -> None:
    x, real = generators(3, 30, 4), data(4)
    clean = FrechetScore(summarise(x), real)
    x[1, 3, 2] = torch.nan
    score = FrechetScore(summarise(x), real)
    table = torch.tensor([[0, 1], [0, 2], [1, 0]])
    weights = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    found, wanted = score(weights, table), clean(weights, table)
    assert found.tolist() == pytest.approx([torch.inf, float(wanted[1]), float(wanted[2])], rel=1e-12)
    evolved = evolve(weights, table, score, 0.1, 50, normals(3, 2))
    assert evolved.weights[2].tolist() == [0.0, 1.0] and evolved.scores[1] < found[1]


def test_one_sample_is_too_few() -> None:
    with pytest.raises(UserError, match="at least 2 samples of each generator"):
        summarise(torch.zeros(2, 1, 3))


# -- evolution --------------------------------------------------------------------------------------------------------


def plain(
    weights: list[float],
    score: Callable[[np.ndarray], float],
    sigma: float,
    generations: int,
    draws: Callable[[int], np.ndarray],
) -> tuple[list[float], float]:
    """A (1+1)-ES of one neighbourhood, as simple as it can be written."""
    best, least = np.array(weights), score(np.array(weights))
    for generation in range(generations):
        tried = np.maximum(best + sigma * draws(generation)[: len(best)], 0)
        if tried.sum() > 0:
            tried = tried / tried.sum()
            if (found := score(tried)) < least:
                best, least = tried, found
    return best.tolist(), least


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_all_at_once_is_the_plain_es_of_each_neighbourhood(sigma: float) -> None:
    made = topology.graph([[1, 2], [0], [3, 4, 0], [2], []])  # rows of 3, 2, 4, 2 and 1
    table = torch.tensor(made.table)
    x, real = generators(5, 60, 4), data(4)
    score, draws = FrechetScore(summarise(x), real), normals(5, made.widest)
    found = evolve(uniform(table), table, score, sigma, 80, draws)
    for cell in range(len(made)):
        members = made.members(cell)
        each = x[members].numpy()

        def pooled(w: np.ndarray, each: np.ndarray = each) -> float:
            flat, share = each.reshape(-1, 4), np.repeat(w / 60, 60)
            cov = torch.from_numpy(np.cov(flat.T, aweights=share))
            return float(distance(Moments(torch.from_numpy(share @ flat), cov), real))

        def own(generation: int, cell: int = cell) -> np.ndarray:
            return draws(generation)[cell].numpy()

        start = [1 / len(members)] * len(members)
        weights, least = plain(start, pooled, sigma, 80, own)
        assert found.weights[cell, : len(members)].tolist() == pytest.approx(weights, abs=1e-9)
        assert float(found.scores[cell]) == pytest.approx(least, rel=1e-9)
    assert (found.scores[:4] < found.history[0, :4]).all()  # it does find something


def test_padding_stays_zero_weights_sum_to_one_and_scores_never_get_worse() -> None:
    made = topology.graph([[1, 2, 3], [0], [0, 1], []])
    table = torch.tensor(made.table)
    score = FrechetScore(summarise(generators(4, 40, 3)), data(3))
    found = evolve(uniform(table), table, score, 0.1, 200, normals(4, made.widest))
    assert np.array_equal(entries(table).numpy(), made.mask)
    assert (found.weights[~entries(table)] == 0).all() and (found.weights >= 0).all()
    assert found.weights.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-12)
    assert found.history.shape == (201, 4) and (found.history.diff(dim=0) <= 0).all()
    assert score(found.weights, table).tolist() == pytest.approx(found.scores.tolist(), rel=1e-12)
    assert found.weights[3].tolist() == [1.0, 0.0, 0.0, 0.0] and found.history[0, 3] == found.history[-1, 3]


def test_a_step_that_clips_all_weights_to_zero_is_rejected() -> None:
    table = torch.tensor([[0, 1]])
    asked: list[list[float]] = []

    def score(weights: Tensor, table: Tensor) -> Tensor:
        asked.append(weights[0].tolist())
        return torch.tensor([1.0 - len(asked)])  # anything new would be kept

    found = evolve(uniform(table), table, score, 1.0, 1, lambda _: torch.full((1, 2), -3.0, dtype=torch.float64))
    assert asked[1] == [0.5, 0.5] and found.weights.tolist() == [[0.5, 0.5]]


def test_a_step_with_an_equal_score_is_rejected() -> None:
    table = torch.tensor([[0, 1]])
    found = evolve(uniform(table), table, lambda w, t: torch.zeros(len(w)), 0.5, 20, normals(1, 2))
    assert found.weights.tolist() == [[0.5, 0.5]]


def test_a_neighbourhood_evolves_the_same_whatever_evolves_with_it() -> None:
    made = topology.torus(3, 3)
    table, score = torch.tensor(made.table), FrechetScore(summarise(generators(9, 30, 3)), data(3))
    draws = normals(9, 5)
    together = evolve(uniform(table), table, score, 0.05, 60, draws)
    some = [7, 2]
    apart = evolve(uniform(table[some]), table[some], score, 0.05, 60, lambda g: draws(g)[some])
    assert torch.allclose(apart.weights, together.weights[some], rtol=0, atol=1e-9)


@pytest.mark.further
def test_a_planted_mixture_is_found() -> None:
    x = generators(5, 500, 3, seed=4)
    pooled = torch.cat([x[1, :300], x[3, :200]])  # the data: three fifths of one, two of another
    table = torch.arange(5)[None]
    found = evolve(uniform(table), table, FrechetScore(summarise(x), moments(pooled)), 0.03, 3000, normals(1, 5))
    assert found.weights[0].tolist() == pytest.approx([0, 0.6, 0, 0.4, 0], abs=0.05)
    assert float(found.scores[0]) < 0.02 * float(found.history[0, 0])
