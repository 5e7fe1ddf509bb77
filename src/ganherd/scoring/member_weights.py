"""Weigh the members of each class in a mixture by a score of the class; classes keep their proportions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ganherd.features.extract import best_device
from ganherd.features.real_features import RealFeatures
from ganherd.metrics import prdc
from ganherd.metrics.metric_registry import metric_of
from ganherd.scoring.ensemble_scores import EnsembleScorer, draw_each, value_of
from ganherd.strategies.mixing import objectives, subset_search
from ganherd.strategies.mixing.scorers import MixtureScorer
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.mixture.mixture import Mixture
    from ganherd.util.meter import Progress

_SAMPLES = 1000  # of each member
_REAL = 10_000  # real images of a class for a heavy network without a GPU
_SEED = 0x5EED  # other samples than those that `ganherd score` draws by default
_GENERATIONS, _SIGMA = 200, 0.05  # of the (1+1)-ES on the weights of a class


@dataclass(frozen=True)
class WeighedMixture:
    """A mixture with new weights, and the mean score of its classes with equal weights and with the new ones."""

    mixture: Mixture
    before: float
    after: float


def weigh_members(
    mixture: Mixture, dataset: Dataset, by: str, samples: int = _SAMPLES, progress: Progress | None = None
) -> WeighedMixture:
    """Evolve the weights of the members of each class, starting with equal ones, so that the class has the best score.

    A member whose samples are not finite gets weight 0, unless all members of its class are like that. The members of a class with
    too few rows for the score keep equal weights.

    Args:
        mixture: A mixture whose members generate one label each.
        dataset: The data; its training rows of a class are what samples of the class are compared with.
        by: The score.
        samples: The number of samples of each member.
        progress: Receives messages about the progress.

    Raises:
        UserError: The score cannot be computed for this data, or for none of its classes.
    """
    reference = RealFeatures(dataset, None, _REAL, progress=progress)
    on_device, cost = mixture.to(best_device()), metric_of(by).cost
    weights = np.stack([mixture.weights_of(replica) for replica in range(mixture.replicas)])  # [replicas, members]
    changes: list[tuple[float, float]] = []
    needed = prdc.NEIGHBOURS + 1 if by in objectives.BALLS else 2  # rows of a class
    rows = {label: len(reference.of_class(label).rows) for label in np.unique(mixture.label_of).tolist()}
    if max(rows.values()) < needed:
        raise UserError(f"run.member_weights {by} needs at least {needed} samples of a class, and all have fewer.")
    for label in rows:
        scorer = EnsembleScorer(on_device, reference.of_class(label), by, False, f"run.member_weights {by}")
        members = np.flatnonzero(mixture.label_of == label)
        for replica, row in enumerate(weights):
            drawn = draw_each(on_device, replica, members.tolist(), samples, _SEED)
            if not drawn:
                continue
            share = row[members].sum()
            row[members] = 0.0
            if rows[label] < needed:
                row[list(drawn)] = share / len(drawn)
                continue
            score = scorer.scorers(scorer.extract(list(drawn.values())))[by]
            badness = partial(_cost, cost, score)
            everyone = [range(len(drawn))]
            best = subset_search.neighbourhoods(badness, len(drawn), everyone, _GENERATIONS, _SIGMA, seed=label)
            equal = best.weights.new_full((len(drawn),), 1 / len(drawn))
            changes.append((value_of(score, equal), value_of(score, best.weights)))
            row[list(drawn)] = share * best.weights.numpy()
    before, after = np.mean(changes, 0).tolist() if changes else (np.nan, np.nan)
    return WeighedMixture(replace(mixture, weights=weights if len(weights) > 1 else weights[0]), before, after)


def _cost(cost: Callable[[Tensor], Tensor], score: MixtureScorer, weights: Tensor, table: Tensor) -> Tensor:
    """Return the cost [mixtures] of mixtures with these weights; the search minimises it."""
    return cost(score(weights, table))
