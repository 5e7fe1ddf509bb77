"""One mixture from the whole herd: a search for the few generators, wherever they live, that are best together.

The two ways of Toutouh, Hemberg and O'Reilly (GECCO 2020): greedy, and a genetic algorithm over ensembles of a given size
(REO-GEN) or of any size between two bounds (NREO-GEN). And the cellular papers' own: the weights of every neighbourhood
evolve, and the best neighbourhood is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.strategies.mixing import mixing
from ganherd.strategies.mixing.mixing import MixtureScorer
from ganherd.util.errors import UserError


@dataclass(frozen=True)
class GeneratorSubset:
    """The best mixture of a search, and how the search went."""

    weights: Tensor  # float64 [G], sums to 1
    score: float
    picked: tuple[int, ...]  # its generators: as they were added, or the heaviest first
    history: tuple[float, ...]  # the best score after each step
    evaluations: int


@dataclass(frozen=True)
class _Genes:
    """One ensemble: distinct generators and their weights."""

    ids: np.ndarray  # int64 [k]
    weights: np.ndarray  # float64 [k], sums to 1


def _measure(score: MixtureScorer, weights: np.ndarray, table: np.ndarray) -> np.ndarray:
    """float64 [M]; what is no number is infinitely bad."""
    found = score(torch.from_numpy(weights), torch.from_numpy(table)).numpy()
    return np.where(np.isnan(found), np.inf, found)


def _ensemble(genes: _Genes, generators: int, history: list[float], evaluations: int) -> GeneratorSubset:
    weights = torch.zeros(generators, dtype=torch.float64)
    weights[torch.from_numpy(genes.ids)] = torch.from_numpy(genes.weights)
    return GeneratorSubset(weights, history[-1], tuple(genes.ids.tolist()), tuple(history), evaluations)


# -- neighbourhoods ---------------------------------------------------------------------------------------------------


def neighbourhoods(
    score: MixtureScorer, generators: int, each: Sequence[Sequence[int]], generations: int, sigma: float, seed: int = 0
) -> GeneratorSubset:
    """(1+1)-ES on the weights of every neighbourhood, from equal ones on; the best neighbourhood of all."""
    widest = max(len(near) for near in each)
    table = torch.tensor([[*near, *[near[0]] * (widest - len(near))] for near in each])  # filling repeats the first
    rng = torch.Generator().manual_seed(seed)
    draws = torch.randn(generations, *table.shape, generator=rng, dtype=torch.float64)
    found = mixing.evolve(mixing.uniform(table), table, score, sigma, generations, lambda g: draws[g])
    told = found.history.masked_fill(found.history.isnan(), torch.inf)  # nan_to_num would make inf finite
    best = int(told[-1].argmin())
    near = np.array(each[best])
    history = told.min(1).values.tolist()
    genes = _Genes(near, found.weights[best, : len(near)].numpy())
    return _ensemble(genes, generators, history, len(each) * (generations + 1))


# -- greedy -----------------------------------------------------------------------------------------------------------


def greedy(score: MixtureScorer, generators: int, size: int, shares: int = 10) -> GeneratorSubset:
    """Begins with the best generator and adds, as often as that helps, the one that helps most.

    A newcomer gets 1/shares, 2/shares, … of the mixture, whichever is best, and the others give way in proportion.
    """
    _refuse(generators, size)
    found = _measure(score, np.ones((generators, 1)), np.arange(generators)[:, None])
    best = int(found.argmin())
    genes, history, evaluations = _Genes(np.array([best]), np.ones(1)), [float(found[best])], generators
    share = np.arange(1, shares)[:, None] / shares  # [shares - 1, 1]
    while len(genes.ids) < min(size, generators) and len(share):
        others = np.setdiff1d(np.arange(generators), genes.ids).repeat(len(share))
        table = np.concatenate([np.tile(genes.ids, (len(others), 1)), others[:, None]], 1)
        grown = np.concatenate([genes.weights * (1 - share), share], 1)  # [shares - 1, size + 1]
        weights = np.tile(grown, (len(others) // len(share), 1))
        found = _measure(score, weights, table)
        evaluations += len(found)
        best = int(found.argmin())
        if not found[best] < history[-1]:
            break
        genes = _Genes(table[best], weights[best])
        history.append(float(found[best]))
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
    """A genetic algorithm over ensembles of `size` generators, or, with `smallest`, of any size from that to `size`.

    Each generation: parents by tournament, pairs crossed, some mutated; the best so far takes the worst child's place.
    """
    _refuse(generators, size)
    size = min(size, generators)
    smallest = size if smallest is None else smallest
    if not 1 <= smallest <= size:
        raise UserError(
            f"an ensemble of {smallest} to {size} generators cannot be: the smallest size is from 1 to {size}."
        )
    if population < 2:
        raise UserError(f"a search for an ensemble needs a population of at least 2, not {population}.")
    rng = np.random.default_rng(seed)
    herd = [_random(rng, generators, int(rng.integers(smallest, size + 1))) for _ in range(population)]
    found = _measure_all(score, herd, size)
    best = int(found.argmin())
    leader, least, history = herd[best], float(found[best]), [float(found[best])]
    for _ in range(generations):
        entrants = rng.integers(0, population, (population, tournament))
        winners = entrants[np.arange(population), found[entrants].argmin(1)]
        herd = [herd[winner] for winner in winners]
        for i in range(0, population - 1, 2):
            if rng.random() < crossover:
                herd[i], herd[i + 1] = _cross(rng, herd[i], herd[i + 1]), _cross(rng, herd[i + 1], herd[i])
        herd = [_mutate(rng, genes, generators, smallest, size) if rng.random() < mutation else genes for genes in herd]
        found = _measure_all(score, herd, size)
        best = int(found.argmin())
        if float(found[best]) < least:
            leader, least = herd[best], float(found[best])
        worst = int(found.argmax())
        herd[worst], found[worst] = leader, least
        history.append(least)
    heaviest = np.argsort(-leader.weights, kind="stable")
    leader = _Genes(leader.ids[heaviest], leader.weights[heaviest])
    return _ensemble(leader, generators, history, population * (generations + 1))


def _measure_all(score: MixtureScorer, herd: list[_Genes], size: int) -> np.ndarray:
    """[population]; short ensembles are filled up with weight 0."""
    table, weights = np.zeros((len(herd), size), np.int64), np.zeros((len(herd), size))
    for row, genes in enumerate(herd):
        table[row, : len(genes.ids)], weights[row, : len(genes.ids)] = genes.ids, genes.weights
    return _measure(score, weights, table)


def _random(rng: np.random.Generator, generators: int, k: int) -> _Genes:
    return _Genes(rng.choice(generators, k, replace=False), rng.dirichlet(np.ones(k)))


def _cross(rng: np.random.Generator, one: _Genes, two: _Genes) -> _Genes:
    """As many generators as the first has, out of both; weights are the mean of what both gave them."""
    both = np.union1d(one.ids, two.ids)
    given = np.array([(one.weights[one.ids == g].sum() + two.weights[two.ids == g].sum()) / 2 for g in both])
    kept = np.sort(rng.choice(len(both), len(one.ids), replace=False))
    return _balanced(both[kept], given[kept])


def _mutate(rng: np.random.Generator, genes: _Genes, generators: int, smallest: int, largest: int) -> _Genes:
    """Another generator, other weights, both, or (where that is free) another size."""
    ids, weights = genes.ids.copy(), genes.weights.copy()
    kind = int(rng.integers(4 if smallest < largest else 3))
    outside = np.setdiff1d(np.arange(generators), ids)
    if kind == 3:
        if len(ids) == largest or (len(ids) > smallest and rng.random() < 0.5):
            dropped = int(rng.integers(len(ids)))
            return _balanced(np.delete(ids, dropped), np.delete(weights, dropped))
        share = 1 / (len(ids) + 1)
        return _balanced(np.append(ids, rng.choice(outside)), np.append(weights * (1 - share), share))
    if kind != 1 and len(outside):
        ids[rng.integers(len(ids))] = rng.choice(outside)
    if kind != 0 and len(ids) > 1:
        i, j = rng.choice(len(ids), 2, replace=False)
        total, share = weights[i] + weights[j], rng.random()
        weights[i], weights[j] = total * share, total * (1 - share)
    return _balanced(ids, weights)


def _balanced(ids: np.ndarray, weights: np.ndarray) -> _Genes:
    total = weights.sum()
    return _Genes(ids, weights / total if total > 0 else np.full(len(ids), 1 / len(ids)))


def _refuse(generators: int, size: int) -> None:
    if generators < 1 or size < 1:
        raise UserError(f"an ensemble needs at least 1 generator, not {min(generators, size)}.")
