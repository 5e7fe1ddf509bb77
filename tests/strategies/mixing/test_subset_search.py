"""The search over the whole herd finds what was planted, repeats itself, and never gets worse."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from ganherd.features.extract import moments
from ganherd.strategies.mixing.scorers import FrechetScore, VariationScore, class_shares, summarise
from ganherd.strategies.mixing.subset_search import GeneratorSubset, evolutionary, greedy, neighbourhoods
from ganherd.util.errors import UserError

GENERATORS = 10


def herd(n: int = 300) -> Tensor:
    """[G, n, 2]: blobs on a circle."""
    rng = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.arange(GENERATORS, dtype=torch.float64) / GENERATORS
    centre = 3 * torch.stack([angle.cos(), angle.sin()], 1)
    return centre[:, None] + torch.randn(GENERATORS, n, 2, generator=rng, dtype=torch.float64)


@pytest.fixture(scope="module")
def pair() -> FrechetScore:
    """The data is made of generators 2 and 7, which lie opposite, one to two."""
    x = herd()
    return FrechetScore(summarise(x), moments(torch.cat([x[2, :150], x[7]])))


def check(found: GeneratorSubset, score: FrechetScore | VariationScore) -> None:
    assert found.weights.shape == (GENERATORS,) and float(found.weights.sum()) == pytest.approx(1, abs=1e-12)
    assert (found.weights >= 0).all() and set(found.weights.nonzero().flatten().tolist()) <= set(found.picked)
    whole = score(found.weights[None], torch.arange(GENERATORS)[None])
    assert found.score == pytest.approx(float(whole), rel=1e-9, abs=1e-12) and found.score == found.history[-1]
    assert all(later <= earlier for earlier, later in itertools.pairwise(found.history))


def test_greedy_finds_the_planted_pair_and_stops(pair: FrechetScore) -> None:
    found = greedy(pair, GENERATORS, size=2)
    check(found, pair)
    assert found.picked == (7, 2) and float(found.weights[2]) == pytest.approx(1 / 3, abs=0.05)
    assert found.evaluations == GENERATORS + 9 * (GENERATORS - 1)
    best = min(
        float(pair(torch.tensor([[1 - share / 10, share / 10]], dtype=torch.float64), torch.tensor([[a, b]])))
        for a, b in itertools.permutations(range(GENERATORS), 2)
        for share in range(1, 10)
    )
    assert found.score == pytest.approx(best, rel=1e-9)  # no pair is better, of all that there are


def test_greedy_adds_no_generator_that_does_not_help() -> None:
    x = herd()
    score = FrechetScore(summarise(x), moments(x[7]))
    found = greedy(score, GENERATORS, size=GENERATORS)
    check(found, score)
    assert found.picked == (7,) and found.score == pytest.approx(0, abs=1e-9) and len(found.history) == 1


def test_greedy_keeps_within_its_size(pair: FrechetScore) -> None:
    sizes = [len(greedy(pair, GENERATORS, size).picked) for size in (1, 2, 3)]
    assert sizes[:2] == [1, 2] and sizes[2] <= 3
    assert greedy(pair, 1, 5).picked == (0,)


def test_classes_can_be_the_score() -> None:
    predicted = torch.stack([torch.full((50,), g) for g in range(GENERATORS)])  # generator g makes class g alone
    real = torch.zeros(GENERATORS, dtype=torch.float64)
    real[[1, 5, 6]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    score = VariationScore(class_shares(predicted, GENERATORS), real)
    for found in (greedy(score, GENERATORS, 5), evolutionary(score, GENERATORS, 5, 1, generations=60)):
        check(found, score)
        assert found.score < 0.12 and {1, 5} <= set(found.picked)


def test_the_evolutionary_search_finds_the_planted_pair(pair: FrechetScore) -> None:
    found = evolutionary(pair, GENERATORS, size=2, generations=40)
    check(found, pair)
    assert set(found.picked) == {2, 7} and found.picked[0] == 7
    assert found.score < greedy(pair, GENERATORS, size=2).score + 1e-9  # its weights are not bound to tenths
    assert found.evaluations == 100 * 41 and len(found.history) == 41


def test_the_evolutionary_search_repeats_itself_under_a_seed(pair: FrechetScore) -> None:
    runs = [evolutionary(pair, GENERATORS, 4, 2, population=20, generations=10, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(runs[0].weights, runs[1].weights) and runs[0].history == runs[1].history
    assert runs[0].history != runs[2].history


@pytest.mark.parametrize(("size", "smallest"), [(3, None), (5, 2), (GENERATORS, 1), (1, None), (99, None)])
def test_ensembles_stay_within_their_sizes(pair: FrechetScore, size: int, smallest: int | None) -> None:
    seen: set[int] = set()

    def score(weights: Tensor, table: Tensor) -> Tensor:
        for w, ids in zip(weights, table, strict=True):
            used = ids[w > 0].tolist()
            assert len(set(used)) == len(used) and float(w.sum()) == pytest.approx(1, abs=1e-12)
            seen.add(len(used))
        return pair(weights, table)

    found = evolutionary(score, GENERATORS, size, smallest, population=12, generations=15)
    largest = min(size, GENERATORS)
    assert seen <= set(range(smallest or largest, largest + 1)) and len(found.picked) in seen
    assert smallest is None or len(seen) > 1  # where the size is free, it is tried


def test_the_neighbourhood_with_the_planted_pair_wins(pair: FrechetScore) -> None:
    near = [[0, 1, 9], [2, 7], [7, 6, 8], [2, 1, 3]]
    found = neighbourhoods(pair, GENERATORS, near, generations=300, sigma=0.05)
    check(found, pair)
    assert set(found.picked) == {2, 7} and float(found.weights[2]) == pytest.approx(1 / 3, abs=0.05)
    assert len(found.history) == 301 and found.history[-1] < found.history[0]
    assert neighbourhoods(pair, GENERATORS, near, 0, 0.05).weights.tolist()[2] == 0.5  # equal weights to begin with


def test_a_broken_generator_is_never_picked() -> None:
    x = herd()
    real = moments(torch.cat([x[2], x[4]]))
    x[4, 0] = torch.nan
    score = FrechetScore(summarise(x), real)
    for found in (greedy(score, GENERATORS, 3), evolutionary(score, GENERATORS, 3, 1, generations=20)):
        assert 4 not in found.picked and found.score < torch.inf


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"size": 0}, "at least 1 generator"),
        ({"size": 3, "smallest": 4}, "from 1 to 3"),
        ({"size": 3, "smallest": 0}, "from 1 to 3"),
        ({"size": 3, "population": 1}, "population of at least 2"),
    ],
)
def test_bad_input_is_one_sentence(pair: FrechetScore, arguments: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        evolutionary(pair, GENERATORS, **arguments)  # type: ignore[arg-type]
