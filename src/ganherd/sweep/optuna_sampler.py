"""Propose settings to try by Optuna's TPE sampler, from the scores of earlier rounds of trials (`--sampler optuna`).

Proposals depend only on the seed, the round and these scores, so a resumed sweep proposes the same ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ganherd.recipe.member_values import Trial, Value
from ganherd.sweep.search_space import Dimension
from ganherd.util.errors import UserError

_TRIES = 8  # ask the sampler at most this often for each trial, because it may repeat proposals


def propose_round(
    dimensions: Sequence[Dimension],
    trials: Sequence[Trial],
    costs: Mapping[int, float],
    count: int,
    seed: int,
    number: int,
) -> list[Trial]:
    """Return up to `count` trials that were not tried before.

    Args:
        dimensions: The settings that are varied.
        trials: The settings of all earlier trials.
        costs: The cost of each earlier trial by its number; less is better, infinity if the trial failed.
        count: The number of trials to propose.
        seed: The seed of the sweep.
        number: The number of the round.
    """
    optuna = _optuna()
    spaces = {dimension.key: _distribution(optuna, dimension) for dimension in dimensions}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        round_seed = (seed * 1000 + number) % 2**32  # NumPy takes 32 bits
        sampler = optuna.samplers.TPESampler(seed=round_seed, n_startup_trials=1, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for place, trial in enumerate(trials):
        params = {dimension.key: _parameter(dimension, trial[dimension.key]) for dimension in dimensions}
        cost = costs.get(place, math.inf)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=cost))
    known, proposed = {str(dict(trial)) for trial in trials}, list[Trial]()
    for _ in range(_TRIES * count):
        params = study.ask(spaces).params
        settings = {dimension.key: _value(dimension, params[dimension.key]) for dimension in dimensions}
        if str(settings) not in known:
            known.add(str(settings))
            proposed.append(settings)
        if len(proposed) == count:
            break
    return proposed


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("--sampler optuna needs the package optuna: run `pip install 'ganherd[optuna]'`.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def check_installed() -> None:
    """Raise a `UserError` if Optuna is not installed."""
    _optuna()


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    """Return a setting's range as an Optuna distribution; for a list of values, the distribution of their positions."""
    if dimension.values:
        return optuna.distributions.CategoricalDistribution(range(len(dimension.values)))
    if dimension.is_whole:
        return optuna.distributions.IntDistribution(
            int(dimension.low), int(dimension.high), log=dimension.is_logarithmic
        )
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.is_logarithmic)


def _parameter(dimension: Dimension, value: Any) -> Any:
    """Return Optuna's parameter for a value of a setting: its position in the list, or the number within the range."""
    if dimension.values:
        return [str(one) for one in dimension.values].index(str(value))
    return min(max(value, dimension.low), dimension.high)


def _value(dimension: Dimension, parameter: float) -> Value:
    """Return the value of a setting for Optuna's parameter; floats are rounded to the four digits that are printed."""
    if dimension.values:
        return dimension.values[int(parameter)]
    return int(parameter) if dimension.is_whole else float(f"{parameter:.4g}")
