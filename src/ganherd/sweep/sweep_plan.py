"""Plan a sweep: its trials (settings to try), the runs that train them, and the recipes of these runs.

Mistakes of the user are reported here, before anything trains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from ganherd.metrics.metric_registry import METRICS, known_metrics
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.member_values import Trial, name_of_trial
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sources.option_override import OptionOverride
from ganherd.sweep import optuna_sampler
from ganherd.sweep.search_space import DEFAULT_TRIALS, Dimension, as_overrides, parse_dimension, propose, split
from ganherd.sweep.sweep_record import SweepGroup, SweepRecord, TrialScore
from ganherd.util.errors import UserError

_KEYS_OF_SWEEP = {
    "train.budget": "give --budget",
    "herd.seeds": "give --seeds",
    "herd.trials": "vary the settings themselves",
    "herd.first": "name a recipe of one phase",
    "run.scores": "choose the score with --score",
    "run.repair.policy": "a trial that breaks is never repaired",
}
# Keys of the section data that may be varied: they change what members see, but not the data that scores compare with.
_DATA_KEYS = {"data.partition", "data.diet", "data.epoch"}
_MANY_MEMBERS = 256  # runs with more members save no sprites (small samples for the live page)


@dataclass(frozen=True)
class SweepRequest:
    """The options of `ganherd sweep`: what to try, and how trials are ranked."""

    recipe: str  # name or file
    vary: Sequence[str]  # texts such as optim.lr_g=1e-5..1e-2
    trials: int | None = None  # largest number of trials; None: all combinations of lists, or 16
    budget: str | None = None  # None: the recipe's
    seeds: int = 1  # replicas of each trial
    score: str = "fid"
    samples: int = 1000  # for each score
    seed: int = 0  # of the proposed settings
    overrides: Sequence[str] = ()  # settings of all trials, as for --set
    halves: bool = True  # whether the worse half of the trials is stopped early, again and again
    trust_code: bool = False
    sampler: Literal["even", "optuna"] = "even"
    rounds: int | None = None  # with optuna; None: 4, or fewer if there are fewer than 8 trials
    is_own: bool = True  # whether the user gave these options; False: read from a sweep's folder, perhaps a stranger's

    @property
    def dimensions(self) -> list[Dimension]:
        return [parse_dimension(text) for text in self.vary]

    @property
    def num_trials(self) -> int:
        """The number of trials if a range is varied; lists of values alone are tried in all combinations."""
        return self.trials or DEFAULT_TRIALS

    @property
    def num_rounds(self) -> int:
        """The number of rounds with Optuna; by default each has at least two trials."""
        return self.rounds or max(2, min(4, self.num_trials // 2))


def plan(request: SweepRequest, round_scores: Sequence[Sequence[TrialScore]] = ()) -> tuple[SweepRecord, list[Recipe]]:
    """Return the record of a sweep, which has its trials, and the recipe of each of its runs.

    Args:
        round_scores: With `--sampler optuna`: the scores of each round so far, from which the next round is proposed.

    Raises:
        UserError: The request is wrong.
    """
    metric = _check_metric(request)
    with in_words_of_the_sweep(request):
        return _planned(request, metric, round_scores)


@contextmanager
def in_words_of_the_sweep(request: SweepRequest) -> Iterator[None]:
    """Rewrite errors about single runs raised inside the block, so that they name options of `ganherd sweep`.

    For example, an error about the recipe key of a varied setting names `--vary` instead.
    """
    try:
        yield
    except UserError as error:
        sentence = re.sub(r"(recipe: )?herd\.trials, entry \d+", "--vary", str(error)).replace("--run", "-o")
        for text in request.vary:
            key, option = re.escape(parse_dimension(text).key), text.replace("\\", r"\\")
            sentence = re.sub(rf"--set {key}=\S*?(:? )", rf"--vary {option}\1", sentence)
        raise UserError(sentence) from error


def _planned(
    request: SweepRequest, metric: str, round_scores: Sequence[Sequence[TrialScore]]
) -> tuple[SweepRecord, list[Recipe]]:
    """Return the record and the recipes, as `plan` does; `metric` is the checked name of the score."""
    each_round, wanted = _proposed_rounds(request, metric, round_scores)
    proposed = [trial for trials in each_round for trial in trials]
    groups: list[SweepGroup] = []
    recipes: list[Recipe] = []
    for number, trials in enumerate(each_round):
        first = sum(len(earlier) for earlier in each_round[:number])
        more, of_round = _divide_into_runs(request, trials, first, len(groups))
        groups, recipes = [*groups, *more], [*recipes, *of_round]
    record = SweepRecord(
        recipe=request.recipe,
        overrides=list(request.overrides),
        vary=list(request.vary),
        trials=[dict(trial) for trial in proposed],
        names=[name_of_trial(trial) for trial in proposed],
        groups=groups,
        seeds=request.seeds,
        budget=recipes[0].train.budget,
        score=metric,
        samples=request.samples,
        seed=request.seed,
        halves=request.sampler == "even" and request.halves and not any(recipe.strategy.meets for recipe in recipes),
        **({} if request.sampler == "even" else {"sampler": "optuna", "rounds": request.num_rounds, "wanted": wanted}),
    )
    return record, recipes


def _proposed_rounds(
    request: SweepRequest, metric: str, round_scores: Sequence[Sequence[TrialScore]]
) -> tuple[list[list[Trial]], int]:
    """Return the trials of each round that can be proposed from the scores so far, and the final number of trials.

    Without Optuna there is one round. With it, the first round covers the ranges evenly, and each later one needs the
    scores of the rounds before.
    """
    if request.sampler == "even":
        trials = _proposed_trials(request)
        return [trials], len(trials)
    optuna_sampler.check_installed()
    wanted, num_rounds = request.num_trials, request.num_rounds
    if wanted < 4:
        raise UserError("--sampler optuna needs at least 4 trials: raise --trials.")
    if not 2 <= num_rounds <= wanted // 2:
        raise UserError(
            f"--rounds {num_rounds}: {wanted} trials make 2 to {wanted // 2} rounds of at least two trials each."
        )
    sizes = [wanted // num_rounds + (number < wanted % num_rounds) for number in range(num_rounds)]
    rounds = [_proposed_trials(replace(request, trials=sizes[0]))]
    costs: dict[int, float] = {}
    for number, scores in enumerate(round_scores[: num_rounds - 1], 1):
        costs |= {score.trial: cost_of(score.value, metric) for score in scores}
        before = [trial for trials in rounds for trial in trials]
        count = sizes[number]
        rounds.append(optuna_sampler.propose_round(request.dimensions, before, costs, count, request.seed, number))
    return [trials for trials in rounds if trials], wanted


def _check_metric(request: SweepRequest) -> str:
    """Return the name of the metric by which trials are ranked; raise a `UserError` if it cannot be used."""
    if not (request.is_own or request.trust_code or METRICS.is_own(request.score)):
        raise UserError(f"this sweep is scored by {request.score}, which is not ganherd's own code: {trust.HOW}")
    (metric,) = known_metrics([request.score])
    if METRICS[metric].contest:
        raise UserError(
            f"--score {metric} compares runs with each other: choose one that is measured for each, such as fid."
        )
    return metric


def _proposed_trials(request: SweepRequest) -> list[Trial]:
    """Return the settings of each trial, which cover the ranges evenly; refuse keys that cannot be varied."""
    if not request.vary:
        raise UserError("a sweep needs settings to vary: add --vary optim.lr_g=1e-5..1e-2, for example.")
    for dimension in request.dimensions:
        _refuse_key(dimension.key)
    proposed = propose(request.dimensions, request.trials, request.seed)
    if len(proposed) < 2:
        raise UserError("a sweep needs at least two trials: vary more, or raise --trials.")
    return proposed


def _divide_into_runs(
    request: SweepRequest, proposed: Sequence[Trial], first_trial: int = 0, first_run: int = 0
) -> tuple[list[SweepGroup], list[Recipe]]:
    """Divide trials into runs; return the trials of each run and its recipe.

    One run trains all trials that differ only in settings which each member can have for itself, such as learning
    rates.

    Args:
        proposed: The settings of each trial.
        first_trial: The number of the first of these trials in the sweep.
        first_run: The number of the first of these runs in the sweep.
    """
    is_own = request.is_own or request.trust_code
    seeds = OptionOverride.of("herd.seeds", request.seeds, f"--seeds {request.seeds}")
    common = [*request.overrides, seeds, "run.scores=false", "run.repair.policy=tell"]
    if request.budget:
        common.append(OptionOverride.of("train.budget", request.budget, f"--budget {request.budget}"))
    fused = [split(trial)[0] for trial in proposed]
    shared = [split(trial)[1] for trial in proposed]
    kinds = [kind for number, kind in enumerate(shared) if kind not in shared[:number]]
    groups, recipes = [], []
    for number, kind in enumerate(kinds):
        trial_numbers = [trial for trial, other in enumerate(shared) if other == kind]
        base = recipe_file.load(request.recipe, [*common, *as_overrides(kind)], is_own=is_own)
        trust.check_recipe(base, request.recipe, request.trust_code, strange=not is_own)
        _refuse(base)
        data = base.model_dump()
        data["herd"]["trials"] = [fused[trial] for trial in trial_numbers] if fused[0] else []
        if (base.members or base.herd.per_class) * base.herd.seeds * len(trial_numbers) > _MANY_MEMBERS:
            data["run"]["sprites"] = 0
        recipes.append(recipe_file.load(data, is_own=is_own))
        trials = [first_trial + trial for trial in trial_numbers]
        groups.append(SweepGroup(run=f"run-{first_run + number:02d}", trials=trials))
    return groups, recipes


def _refuse_key(key: str) -> None:
    """Raise a `UserError` for keys that the sweep sets itself, and those that change the data used for scores."""
    if key in _KEYS_OF_SWEEP:
        raise UserError(f"--vary {key}: the sweep sets this for all trials alike; {_KEYS_OF_SWEEP[key]}.")
    if key.startswith("data.") and key not in _DATA_KEYS:
        raise UserError(
            f"--vary {key}: all trials are scored against the same data; compare data with `ganherd compare`, or vary "
            f"{', '.join(sorted(_DATA_KEYS))}."
        )


def _refuse(recipe: Recipe) -> None:
    """Raise a `UserError` for a recipe that trains two phases, or that lists trials already."""
    if recipe.herd.first is not None:
        raise UserError(
            "a sweep trains one phase, and this recipe trains another one first: name that recipe, "
            "or give --set herd.first=null and herd.start_from."
        )
    if recipe.herd.trials:
        raise UserError("the recipe has herd.trials of its own, and a sweep sets them: leave them out.")


def cost_of(value: float | None, metric: str) -> float:
    """Return the cost of a value of a metric, of which less is better; infinity if there is no finite value."""
    return math.inf if value is None or not math.isfinite(value) else METRICS[metric].cost(value)
