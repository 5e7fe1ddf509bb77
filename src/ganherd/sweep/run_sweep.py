"""Train the trials of a sweep rung by rung, and stop the worse half after each. The same call continues an interrupted sweep.

Trials that differ in settings of single members are replicas of one run, which trains them as one computation. Trials with other
nets, batches or data need runs of their own: their runs take turns at every rung, and all trials are ranked together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.compare.compare_recipes import refuse_strangers
from ganherd.metrics.metric_registry import METRICS, known_metrics
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.member_values import Trial, name_of_trial
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs.folder import RunFolder
from ganherd.sweep import sweep_record
from ganherd.sweep.halving import cost, rungs, stopped, survivors
from ganherd.sweep.search_space import Dimension, as_overrides, parse_dimension, propose, split
from ganherd.sweep.sweep_record import RungResult, SweepGroup, SweepRecord
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.text import duration, one_line

if TYPE_CHECKING:
    from ganherd.sweep.trial_scores import TrialScorer

Log = Callable[[str], None]
_OWN_KEYS = {
    "train.budget": "give --budget",
    "herd.seeds": "give --seeds",
    "herd.trials": "vary the settings themselves",
    "herd.first": "name a recipe of one phase",
    "run.scores": "choose the score with --score",
    "run.repair.policy": "a trial that breaks is never repaired",
}
_DATA_KEYS = {
    "data.partition",
    "data.diet",
    "data.epoch",
}  # change what members see, and not what they are scored against
_MANY_MEMBERS = 256  # more tiles than anybody looks at: no sprites are saved


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep tries, and how its trials are ranked."""

    recipe: str
    vary: Sequence[str]
    trials: int | None = None
    budget: str | None = None  # None: the recipe's
    seeds: int = 1
    score: str = "fid"
    samples: int = 1000
    seed: int = 0  # of the proposed settings
    overrides: Sequence[str] = ()
    halves: bool = True
    trust_code: bool = False
    is_own: bool = True  # the user's words; False: those of a sweep's folder, which a stranger may have written

    @property
    def dimensions(self) -> list[Dimension]:
        return [parse_dimension(text) for text in self.vary]


@dataclass
class _Sweep:
    """A sweep at work: its record, the recipe of each of its runs, and where it lies."""

    record: SweepRecord
    recipes: list[Recipe]  # of each group
    folder: Path
    quiet: bool
    log: Log
    began: float = field(default_factory=time.monotonic)

    def write(self) -> None:
        now = time.monotonic()
        self.record.seconds = round(self.record.seconds + now - self.began, 3)
        self.began = now
        self.record.write(self.folder)


def plan(request: SweepRequest) -> tuple[SweepRecord, list[Recipe]]:
    """Return the record of a new sweep and the recipes of its runs; every mistake is reported here, before anything trains."""
    metric = _check_metric(request)
    proposed = _proposed_trials(request)
    groups, recipes = _divide_into_runs(request, proposed)
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
        halves=request.halves and not any(recipe.strategy.meets for recipe in recipes),
    )
    return record, recipes


def _check_metric(request: SweepRequest) -> str:
    """Return the name of the metric that trials are ranked by."""
    if not (request.is_own or request.trust_code or METRICS.is_own(request.score)):
        raise UserError(f"this sweep is scored by {request.score}, which is not ganherd's own code: {trust.HOW}")
    (metric,) = known_metrics([request.score])
    if METRICS[metric].contest:
        raise UserError(
            f"--score {metric} compares runs with each other: choose one that is measured for each, such as fid."
        )
    return metric


def _proposed_trials(request: SweepRequest) -> list[Trial]:
    """Return the settings of each trial."""
    if not request.vary:
        raise UserError("a sweep needs settings to vary: add --vary optim.lr_g=1e-5..1e-2, for example.")
    for dimension in request.dimensions:
        _refuse_key(dimension.key)
    proposed = propose(request.dimensions, request.trials, request.seed)
    if len(proposed) < 2:
        raise UserError("a sweep needs at least two trials: vary more, or raise --trials.")
    return proposed


def _divide_into_runs(request: SweepRequest, proposed: Sequence[Trial]) -> tuple[list[SweepGroup], list[Recipe]]:
    """Return the trials of each run and its recipe: a run trains all trials that differ in settings of single members only."""
    is_own = request.is_own or request.trust_code
    common = [*request.overrides, f"herd.seeds={request.seeds}", "run.scores=false", "run.repair.policy=tell"]
    common += [f"train.budget={request.budget}"] if request.budget else []
    fused = [split(trial)[0] for trial in proposed]
    shared = [split(trial)[1] for trial in proposed]
    kinds = [kind for number, kind in enumerate(shared) if kind not in shared[:number]]
    groups, recipes = [], []
    for number, kind in enumerate(kinds):
        own = [trial for trial, other in enumerate(shared) if other == kind]
        base = recipe_file.load(request.recipe, [*common, *as_overrides(kind)], is_own=is_own)
        trust.check_recipe(base, request.recipe, request.trust_code, strange=not is_own)
        _refuse(base)
        data = base.model_dump()
        data["herd"]["trials"] = [fused[trial] for trial in own] if fused[0] else []
        if (base.members or 1) * base.herd.seeds * len(own) > _MANY_MEMBERS:
            data["run"]["sprites"] = 0
        recipes.append(recipe_file.load(data, is_own=is_own))
        groups.append(SweepGroup(run=f"run-{number:02d}", trials=own))
    return groups, recipes


def _refuse_key(key: str) -> None:
    """Refuse settings that the sweep sets itself, and those by which trials would be scored against different data."""
    if key in _OWN_KEYS:
        raise UserError(f"--vary {key}: the sweep sets this for all trials alike; {_OWN_KEYS[key]}.")
    if key.startswith("data.") and key not in _DATA_KEYS:
        raise UserError(
            f"--vary {key}: all trials are scored against the same data; compare data with `ganherd compare`, or vary "
            f"{', '.join(sorted(_DATA_KEYS))}."
        )


def _refuse(recipe: Recipe) -> None:
    """Refuse recipes whose herds cannot be copied."""
    if recipe.herd.first is not None:
        raise UserError(
            "a sweep trains one phase, and this recipe trains another one first: name that recipe, "
            "or give --set herd.first=null and herd.start_from."
        )
    if recipe.herd.trials:
        raise UserError("the recipe has herd.trials of its own, and a sweep sets them: leave them out.")


def sweep(request: SweepRequest, folder: Path, quiet: bool = False, log: Log | None = None) -> SweepRecord:
    """Train and rank what is still missing in the folder; return the content of sweep.json."""
    record, recipes = plan(request)
    if sweep_record.read(folder) is None and folder.exists() and not _is_empty(folder):
        raise UserError(f"{folder} exists already and holds no sweep: choose another folder with -o.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the sweep cannot be written to {folder}: {error.strerror}.") from error
    with RunFolder(folder).lock():
        old = sweep_record.read(folder)  # by now another process may have begun, and finished it
        if old is not None and old.settings() != record.settings():
            changed = recipe_file.differing(old.settings(), record.settings())
            raise UserError(
                f"{folder} holds a sweep with other settings ({one_line('; '.join(changed), 300)}): choose another -o."
            )
        state = _Sweep(old or record, recipes, folder, quiet, log or (lambda text: None))
        try:
            state.write()
        except OSError as error:
            raise UserError(f"the sweep cannot be written to {folder}: {error.strerror}.") from error
        return _run(state)


def _is_empty(folder: Path) -> bool:
    """Return whether a folder holds at most the lock of a sweep that could not be written."""
    return folder.is_dir() and all(path.name == ".lock" for path in folder.iterdir())


def resume(folder: Path, quiet: bool = False, log: Log | None = None, trust_code: bool = False) -> SweepRecord:
    """Continue the sweep of a folder, or return it if it is finished."""
    record = sweep_record.read(folder)
    if record is None:
        raise UserError(
            f"there is no sweep in {folder}, because it has no {sweep_record.FILE}: name the folder that `ganherd sweep` wrote."
        )
    request = SweepRequest(
        record.recipe,
        record.vary,
        len(record.trials),
        record.budget,
        record.seeds,
        record.score,
        record.samples,
        record.seed,
        record.overrides,
        record.halves,
        trust_code,
        is_own=False,
    )
    return sweep(request, folder, quiet, log)


def _run(state: _Sweep) -> SweepRecord:
    from ganherd.data.dataset import load
    from ganherd.sweep.trial_scores import TrialScorer

    record = state.record
    for group, recipe in zip(record.groups, state.recipes, strict=True):
        refuse_strangers(RunFolder(state.folder / group.run), recipe)
    if record.is_finished:
        return record
    scorer = TrialScorer(load(state.recipes[0].data), record.score, record.samples, state.log)
    if not record.steps:
        steps = _planned_steps(state, scorer)
        record.steps = [(rung.step, rung.trials) for rung in rungs(len(record.trials), steps, record.halves)]
        state.write()
    further = f"; the best continue to step {record.steps[-1][0]:,}" if len(record.steps) > 1 else ""
    state.log(
        f"{_count(len(record.trials), 'trial')} in {_count(len(record.groups), 'run')} to step {record.steps[0][0]:,}{further}"
    )
    for step, _ in record.steps[len(record.rungs) :]:
        _run_rung(state, scorer, step)
    return record


def _run_rung(state: _Sweep, scorer: TrialScorer, step: int) -> None:
    """Train the trials that are left up to a step, score them, and record which of them continue."""
    record = state.record
    left = record.rungs[-1].left if record.rungs else list(range(len(record.trials)))
    scores = []
    for group, recipe in zip(record.groups, state.recipes, strict=True):
        own = [(trial, position) for position, trial in enumerate(group.trials) if trial in left]
        if own:
            _train_to(state, group, recipe, step, stopped(group.trials, left))
            state.log(f"scoring {_count(len(own), 'trial')} at step {step:,}")
            scores += scorer.score_trials(state.folder / group.run, own, record.seeds)
    costs = {score.trial: cost_of(score.value, record.score) for score in scores}
    number = len(record.rungs)
    count = record.steps[number + 1][1] if number + 1 < len(record.steps) else len(costs)
    record.rungs.append(RungResult(step=step, scores=scores, left=survivors(costs, count)))
    state.write()
    best = min(costs, key=lambda trial: (costs[trial], trial))
    value = next(score.value for score in scores if score.trial == best)
    state.log(f"step {step:,}: best {record.names[best]}, {record.score} {value if value is None else f'{value:.4g}'}")


def cost_of(value: float | None, metric: str) -> float:
    """Return a number of which less is better; infinity if there is no value."""
    return math.inf if value is None or not math.isfinite(value) else METRICS[metric].cost(value)


def _train_to(state: _Sweep, group: SweepGroup, recipe: Recipe, step: int, stopped_trials: Sequence[int]) -> None:
    """Train a run up to a step, without the trials that were stopped."""
    from ganherd.training import session

    run, budget = RunFolder(state.folder / group.run), f"train.budget={step}steps"
    try:
        if not run.info_path.is_file():
            session.train(recipe_file.load(recipe, [budget]), run.path, group.run, state.quiet)
            return
        if run.info.state == "finished" and (run.info.step or 0) >= step:
            return
        replicas = [
            position * recipe.herd.seeds + seed
            for position, trial in enumerate(group.trials)
            if trial in stopped_trials
            for seed in range(recipe.herd.seeds)
        ]
        session.resume(run.path, [budget], state.quiet, True, stopping=replicas)
    except Interrupted:
        state.write()
        raise Interrupted("the sweep was stopped, and nothing is lost: the same command resumes it.") from None


def _planned_steps(state: _Sweep, scorer: TrialScorer) -> int:
    """Return the steps of the best trials: those of the budget, or as many as the sweep can make in the budget's time."""
    from ganherd.training.setup import dry_run

    record = state.record
    unit, amount = parse_budget(record.budget)
    if unit == "steps":
        return int(amount)
    biggest = max(range(len(record.groups)), key=lambda group: len(record.groups[group].trials))
    state.log("measuring the speed of the herd")
    facts = dry_run.describe(state.recipes[biggest])
    if unit == "epochs":
        return int(facts["steps"])
    members = facts["members"] / len(record.groups[biggest].trials)  # of one trial, over its seeds
    planned = rungs(len(record.trials), 1 << 40, record.halves)
    around = len(planned) * len(record.groups) * facts["warm"]["start_seconds"]  # what is not training
    around += sum(rung.trials for rung in planned) * record.seeds * _seconds_of_a_score(state, scorer)
    around += time.monotonic() - state.began  # the measurements themselves
    left = amount - around
    if left <= 0:
        raise UserError(
            f"--budget {record.budget} is too short for this sweep: it takes {duration(math.ceil(around))} without any training; "
            "give it more time, fewer trials or fewer samples (-n)."
        )
    work = cost(len(record.trials), record.halves) * members  # members that train to the end
    return max(1, int(left * facts["member_steps_per_second"] / work))


def _seconds_of_a_score(state: _Sweep, scorer: TrialScorer) -> float:
    """Measure the seconds that the score of one trial takes, on a herd that is not trained."""
    from ganherd.training.finish import make_mixture
    from ganherd.training.setup.assemble import assemble

    herd = {**state.recipes[0].herd.model_dump(), "trials": [], "seeds": 1}
    mixture = make_mixture(assemble(recipe_file.load({**state.recipes[0].model_dump(), "herd": herd}), True), 0)
    scorer.score_mixture(0, mixture, [0])  # the first one also computes what all share
    began = time.monotonic()
    scorer.score_mixture(0, mixture, [0])
    return time.monotonic() - began


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
