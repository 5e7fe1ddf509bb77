"""Search for a few generators of a herd, and their weights, that are best as one mixture (an ensemble).

Two methods are those of Toutouh, Hemberg and O'Reilly (GECCO 2020): greedy, and a genetic algorithm over ensembles of a
fixed size (REO-GEN) or of any size between two bounds (NREO-GEN). The third is that of the papers on cellular
coevolution: evolve the weights of every neighbourhood of a grid, and take the best neighbourhood. All of them minimise
a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.strategies.mixing.scorers import MixtureScorer
from ganherd.strategies.mixing.weight_evolution import evolve, uniform
from ganherd.util.errors import UserError

_SHARES = 10  # steps between weight 0 and weight 1 of a generator that `greedy` adds


@dataclass(frozen=True)
class GeneratorSubset:
    """The best mixture that a search found, and the course of the search."""

    weights: Tensor  # float64 [G], the weight of each of the herd's G generators, 0 for most; they sum to 1
    score: float
    picked: tuple[int, ...]  # numbers of the generators in the mixture; each search states their order
    history: tuple[float, ...]  # the best score at the start and after each step
    evaluations: int  # the number of mixtures that were scored


@dataclass(frozen=True)
class _Genes:
    """One ensemble: distinct generators and their weights."""

    ids: np.ndarray  # int64 [k]
    weights: np.ndarray  # float64 [k], sums to 1


def _measure(score: MixtureScorer, weights: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the scores of M mixtures, float64 [M]; a score that is NaN becomes infinite.

    Args:
        score: The scorer.
        weights: float64 [M, s], the weight of each generator in `table`.
        table: int64 [M, s], the numbers of the generators in each mixture.
    """
    scores = score(torch.from_numpy(weights), torch.from_numpy(table)).numpy()
    return np.where(np.isnan(scores), np.inf, scores)


def _ensemble(genes: _Genes, generators: int, history: list[float], evaluations: int) -> GeneratorSubset:
    """Return the result of a search that ended with this ensemble.

    Args:
        genes: The ensemble.
        generators: The number of generators in the herd; those outside the ensemble get weight 0.
        history: The best score at the start and after each step; the last one is the ensemble's.
        evaluations: The number of mixtures that were scored.
    """
    weights = torch.zeros(generators, dtype=torch.float64)
    weights[torch.from_numpy(genes.ids)] = torch.from_numpy(genes.weights)
    return GeneratorSubset(weights, history[-1], tuple(genes.ids.tolist()), tuple(history), evaluations)


# -- neighbourhoods ---------------------------------------------------------------------------------------------------


def neighbourhoods(
    score: MixtureScorer, generators: int, each: Sequence[Sequence[int]], generations: int, sigma: float, seed: int = 0
) -> GeneratorSubset:
    """Evolve the mixture weights of every neighbourhood, and return the mixture of the best neighbourhood.

    Weights start equal and evolve by a (1+1)-ES: a random change is accepted if it improves the score. `picked` lists
    the neighbourhood in the order of `each`.

    Args:
        score: The score to minimise.
        generators: The number of generators.
        each: The generators of each neighbourhood.
        generations: The number of steps of the ES.
        sigma: The standard deviation of a step.
        seed: The seed of the ES.
    """
    widest = max(len(near) for near in each)
    table = torch.tensor([[*near, *[near[0]] * (widest - len(near))] for near in each])  # Padding repeats the first.
    rng = torch.Generator().manual_seed(seed)
    draws = torch.randn(generations, *table.shape, generator=rng, dtype=torch.float64)
    evolved = evolve(uniform(table), table, score, sigma, generations, lambda g: draws[g])
    scores = evolved.history.masked_fill(evolved.history.isnan(), torch.inf)  # nan_to_num would make inf finite.
    best = int(scores[-1].argmin())
    near = np.array(each[best])
    history = scores.min(1).values.tolist()
    genes = _Genes(near, evolved.weights[best, : len(near)].numpy())
    return _ensemble(genes, generators, history, len(each) * (generations + 1))


# -- greedy -----------------------------------------------------------------------------------------------------------


def greedy(score: MixtureScorer, generators: int, size: int) -> GeneratorSubset:
    """Search greedily: begin with the best single generator, and add one generator at a time while the score improves.

    At each step, every generator that is not in the mixture is tried with 1/10, 2/10, … 9/10 of the total weight, and
    the weights of those in the mixture are scaled down to the rest. The generator and the share with the lowest score
    are added. `picked` lists generators in the order in which they were added.

    Args:
        score: The score to minimise.
        generators: The number of generators.
        size: The largest number of generators in the mixture.
    """
    _refuse(generators, size)
    scores = _measure(score, np.ones((generators, 1)), np.arange(generators)[:, None])
    best = int(scores.argmin())
    genes, history, evaluations = _Genes(np.array([best]), np.ones(1)), [float(scores[best])], generators
    share = np.arange(1, _SHARES)[:, None] / _SHARES  # [9, 1]
    while len(genes.ids) < min(size, generators):
        others = np.setdiff1d(np.arange(generators), genes.ids).repeat(len(share))
        table = np.concatenate([np.tile(genes.ids, (len(others), 1)), others[:, None]], 1)
        grown = np.concatenate([genes.weights * (1 - share), share], 1)  # [9, len(genes.ids) + 1]
        weights = np.tile(grown, (len(others) // len(share), 1))
        scores = _measure(score, weights, table)
        evaluations += len(scores)
        best = int(scores.argmin())
        if not scores[best] < history[-1]:
            break
        genes = _Genes(table[best], weights[best])
        history.append(float(scores[best]))
    return _ensemble(genes, generators, history, evaluations)


# -- evolutionary -----------------------------------------------------------------------------------------------------


def evolutionary(
    score: MixtureScorer,
    generators: int,
    size: int,
    smallest: int | None = None,
    *,
    population: int = 100,
    generations: int = 100,
    crossover: float = 0.8,
    mutation: float = 0.2,
    tournament: int = 3,
    seed: int = 0,
) -> GeneratorSubset:
    """Search with a genetic algorithm over ensembles of `smallest` to `size` generators.

    Each generation selects ensembles by tournaments, crosses some pairs of them and mutates some; the best ensemble so
    far replaces the worst one. `picked` lists generators by descending weight.

    Args:
        score: The score to minimise.
        generators: The number of generators.
        size: The largest number of generators in an ensemble.
        smallest: The smallest number; None: all ensembles have `size` generators.
        population: The number of ensembles in a generation.
        generations: The number of generations after the first, random one.
        crossover: The probability that a pair is crossed.
        mutation: The probability that an ensemble is mutated.
        tournament: The number of ensembles in a tournament.
        seed: The seed of the search.

    Raises:
        UserError: The sizes or the population are impossible.
    """
    _refuse(generators, size)
    size = min(size, generators)
    smallest = size if smallest is None else smallest
    if not 1 <= smallest <= size:
        raise UserError(
            f"an ensemble of {smallest} to {size} generators is impossible: choose a smallest size from 1 to {size}."
        )
    if population < 2:
        raise UserError(f"a search for an ensemble needs a population of at least 2, not {population}.")
    rng = np.random.default_rng(seed)
    candidates = [_random(rng, generators, int(rng.integers(smallest, size + 1))) for _ in range(population)]
    scores = _measure_all(score, candidates, size)
    best = int(scores.argmin())
    leader, least, history = candidates[best], float(scores[best]), [float(scores[best])]
    for _ in range(generations):
        candidates = _select_and_cross(rng, candidates, scores, tournament, crossover)
        candidates = [
            _mutate(rng, genes, generators, smallest, size) if rng.random() < mutation else genes
            for genes in candidates
        ]
        scores = _measure_all(score, candidates, size)
        best = int(scores.argmin())
        if float(scores[best]) < least:
            leader, least = candidates[best], float(scores[best])
        worst = int(scores.argmax())
        candidates[worst], scores[worst] = leader, least
        history.append(least)
    heaviest = np.argsort(-leader.weights, kind="stable")
    leader = _Genes(leader.ids[heaviest], leader.weights[heaviest])
    return _ensemble(leader, generators, history, population * (generations + 1))


def _select_and_cross(
    rng: np.random.Generator, candidates: list[_Genes], scores: np.ndarray, tournament: int, crossover: float
) -> list[_Genes]:
    """Return the next generation: the winners of as many tournaments, with some consecutive pairs crossed.

    Args:
        rng: The source of random numbers.
        candidates: The ensembles of the current generation.
        scores: Their scores [population]; less is better.
        tournament: The number of ensembles in a tournament, drawn with replacement.
        crossover: The probability that a pair is crossed.
    """
    population = len(candidates)
    entrants = rng.integers(0, population, (population, tournament))
    winners = entrants[np.arange(population), scores[entrants].argmin(1)]
    candidates = [candidates[winner] for winner in winners]
    for i in range(0, population - 1, 2):
        if rng.random() < crossover:
            candidates[i], candidates[i + 1] = (
                _cross(rng, candidates[i], candidates[i + 1]),
                _cross(rng, candidates[i + 1], candidates[i]),
            )
    return candidates


def _measure_all(score: MixtureScorer, candidates: list[_Genes], size: int) -> np.ndarray:
    """Return the score of each candidate, an ensemble of at most `size` generators: float64 [candidates]."""
    table, weights = np.zeros((len(candidates), size), np.int64), np.zeros((len(candidates), size))
    for row, genes in enumerate(candidates):
        table[row, : len(genes.ids)], weights[row, : len(genes.ids)] = genes.ids, genes.weights
    return _measure(score, weights, table)


def _random(rng: np.random.Generator, generators: int, k: int) -> _Genes:
    """Return an ensemble of k random generators with random weights."""
    return _Genes(rng.choice(generators, k, replace=False), rng.dirichlet(np.ones(k)))


def _cross(rng: np.random.Generator, one: _Genes, two: _Genes) -> _Genes:
    """Return a random child of two ensembles, which has as many generators as the first.

    Its generators are drawn from those of both parents. The weight of each is the mean of its weights in the two
    parents (0 if a parent does not have it), scaled so that all sum to 1.
    """
    both = np.union1d(one.ids, two.ids)
    weights = np.array([(one.weights[one.ids == g].sum() + two.weights[two.ids == g].sum()) / 2 for g in both])
    chosen = np.sort(rng.choice(len(both), len(one.ids), replace=False))
    return _normalised(both[chosen], weights[chosen])


def _mutate(rng: np.random.Generator, genes: _Genes, generators: int, smallest: int, largest: int) -> _Genes:
    """Return a random variant of an ensemble of at least `smallest` and at most `largest` generators.

    At random, one generator is exchanged, two weights are redistributed, or both; or, if sizes may vary, a generator is
    added or dropped. `generators` is the number of generators to choose from.
    """
    ids, weights = genes.ids.copy(), genes.weights.copy()
    kind = int(rng.integers(4 if smallest < largest else 3))
    outside = np.setdiff1d(np.arange(generators), ids)
    if kind == 3:
        if len(ids) == largest or (len(ids) > smallest and rng.random() < 0.5):
            dropped = int(rng.integers(len(ids)))
            return _normalised(np.delete(ids, dropped), np.delete(weights, dropped))
        share = 1 / (len(ids) + 1)
        return _normalised(np.append(ids, rng.choice(outside)), np.append(weights * (1 - share), share))
    if kind != 1 and len(outside):
        ids[rng.integers(len(ids))] = rng.choice(outside)
    if kind != 0 and len(ids) > 1:
        i, j = rng.choice(len(ids), 2, replace=False)
        total, share = weights[i] + weights[j], rng.random()
        weights[i], weights[j] = total * share, total * (1 - share)
    return _normalised(ids, weights)


def _normalised(ids: np.ndarray, weights: np.ndarray) -> _Genes:
    """Return an ensemble with the weights scaled to sum to 1, or equal weights if all are 0."""
    total = weights.sum()
    return _Genes(ids, weights / total if total > 0 else np.full(len(ids), 1 / len(ids)))


def _refuse(generators: int, size: int) -> None:
    """Raise a UserError if an ensemble of `size` generators, out of `generators`, would be empty."""
    if generators < 1 or size < 1:
        raise UserError(f"an ensemble needs at least 1 generator, not {min(generators, size)}.")
