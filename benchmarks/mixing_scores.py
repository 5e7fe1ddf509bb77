"""Measure 5,000 generations of the evolution of mixture weights by each score, on random features and a torus.

OMP_NUM_THREADS=1 python benchmarks/mixing_scores.py [--rows 4 --columns 4 --samples 1000 --features 64]
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ganherd.features.extract import ExtractedFeatures, moments
from ganherd.metrics.metric_registry import metric_of
from ganherd.recipe.mixture_scores import BY
from ganherd.strategies.cellular import topology
from ganherd.strategies.mixing import objectives
from ganherd.strategies.mixing.objectives import SampledGenerator
from ganherd.strategies.mixing.scorers import (
    CapturedScore,
    FrechetScore,
    MixtureScorer,
    VariationScore,
    class_shares,
    summarise,
)
from ganherd.strategies.mixing.weight_evolution import evolve, uniform

CLASSES, REAL, TIMED, GENERATIONS = 10, 1500, 300, 5000


def scores(name: str, each: list[SampledGenerator], reference: Any, samples: int) -> MixtureScorer:
    """Return the score of these generators, from random features."""
    logits = [one.logits.argmax(1) for one in each if one.logits is not None]
    if name == "fid":
        return FrechetScore(summarise([one.features for one in each]), moments(reference.real.x))
    if name == "tvd":
        return VariationScore(class_shares(logits, CLASSES), torch.full((CLASSES,), 1 / CLASSES))
    if name in ("modes", "stacked_modes"):  # what is timed does not depend on how modes are recognised
        places, most = (8, samples // 8) if name == "modes" else (1000, 4)
        return CapturedScore(torch.randint(0, most, (len(each), places)), samples)
    aim = objectives.find(name, reference, samples, lambda features: torch.device("cpu"))
    assert aim is not None
    return aim.score(aim.measure_all(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("rows", 4), ("columns", 4), ("samples", 1000), ("features", 64)):
        parser.add_argument(f"--{option}", type=int, default=default)
    args = parser.parse_args()
    torch.manual_seed(0)
    table = torch.tensor(topology.torus(args.rows, args.columns).table)
    y = torch.arange(args.samples) % CLASSES
    shift = 0.1 * torch.randn(len(table), 1, args.features)
    x = torch.randn(len(table), args.samples, args.features) + shift
    each = [SampledGenerator(own, own, 3 * torch.randn(args.samples, CLASSES), y) for own in x]
    labels = np.arange(REAL) % CLASSES
    real = ExtractedFeatures(torch.randn(REAL, args.features), None, labels, labels)
    dataset = SimpleNamespace(labels=tuple("0123456789"))
    reference = SimpleNamespace(real=real, dataset=dataset, real_of=lambda k: real.rows(np.isin(labels, k)))
    draws = torch.randn(TIMED, *table.shape, dtype=torch.float64)
    print(
        f"{len(table)} cells, {args.samples:,} samples of each, {args.features} features, {torch.get_num_threads()} thread(s)"
    )
    print(f"{'score':<18}{'once':>8}{f'{GENERATIONS:,} generations':>22}")
    for name in BY:
        start = time.perf_counter()
        score = scores(name, each, reference, args.samples)
        score(uniform(table), table)
        once = time.perf_counter() - start
        start = time.perf_counter()
        evolve(uniform(table), table, score, 0.01, TIMED, lambda generation: draws[generation], metric_of(name).cost)
        taken = (time.perf_counter() - start) * GENERATIONS / TIMED
        print(f"{name:<18}{once:>6.2f} s{taken:>20.1f} s", flush=True)


if __name__ == "__main__":
    main()
