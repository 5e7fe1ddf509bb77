"""Train the trials of a sweep up to a step (rung), stop the worse half, and so on. The same call resumes the sweep.

A trial is one setting that the sweep tries. Trials that differ only in settings which each member can have for itself,
such as learning rates, are replicas of one run, which trains them as one computation. Trials with other nets, batches
or data need runs of their own (groups). These runs take turns at every rung, and all trials are ranked together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.compare.compare_recipes import refuse_strangers
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs.folder import RunFolder
from ganherd.sweep import sweep_record
from ganherd.sweep.halving import cost, rungs, stopped, survivors
from ganherd.sweep.sweep_plan import SweepRequest as SweepRequest
from ganherd.sweep.sweep_plan import cost_of, in_words_of_the_sweep, plan
from ganherd.sweep.sweep_record import RungResult, SweepGroup, SweepRecord, TrialScore
from ganherd.sweep.sweep_tasks import tasks_of_rounds, tasks_of_rungs
from ganherd.training.recording.series_progress import SeriesProgress
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.meter import Detail
from ganherd.util.text import duration, one_line

if TYPE_CHECKING:
    from ganherd.sweep.trial_scores import TrialScorer


@dataclass
class _Sweep:
    """A sweep that is being run: its record, the recipe of each of its runs, and its folder."""

    request: SweepRequest
    record: SweepRecord  # the content of sweep.json
    recipes: list[Recipe]  # of each group (run)
    folder: Path
    series: SeriesProgress
    began: float = field(default_factory=time.monotonic)  # when the record was last written, or the sweep was started

    def log(self, text: str) -> None:
        self.series.say(text)

    def write(self) -> None:
        now = time.monotonic()
        self.record.seconds = round(self.record.seconds + now - self.began, 3)
        self.began = now
        self.record.write(self.folder)


def sweep(request: SweepRequest, folder: Path, quiet: bool = False) -> SweepRecord:
    """Run a sweep, or resume the one in the folder, and return its record (the content of sweep.json).

    Raises:
        UserError: The request is wrong, or the folder holds something else or a sweep with other settings.
        Interrupted: The sweep was stopped; the same call resumes it.
    """
    from ganherd.training.setup.member_data import cut

    record, recipes = plan(request)
    if sweep_record.read(folder) is None and folder.exists() and not _is_empty(folder):
        raise UserError(f"{folder} exists already and holds no sweep: choose another folder with -o.")
    with in_words_of_the_sweep(request):
        if not folder.exists():  # find mistakes that depend on the data before anything is written
            for recipe in recipes:
                cut(recipe)
        return _locked(request, record, recipes, folder, quiet)


def _locked(
    request: SweepRequest, record: SweepRecord, recipes: list[Recipe], folder: Path, quiet: bool
) -> SweepRecord:
    """Run or resume the sweep while this process holds the lock of its folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the sweep cannot be written to {folder}: {error.strerror}.") from error
    with RunFolder(folder).lock():
        old = sweep_record.read(folder)  # again, because another process may have run the sweep in the meantime
        if old is not None and old.round_scores:
            record, recipes = plan(request, old.round_scores)
        if old is not None and old.settings() != record.settings():
            changed = recipe_file.differing(old.settings(), record.settings())
            raise UserError(
                f"{folder} holds a sweep with other settings ({one_line('; '.join(changed), 300)}): choose another -o."
            )
        state = _Sweep(request, old or record, recipes, folder, SeriesProgress(quiet))
        try:
            state.write()
        except OSError as error:
            raise UserError(f"the sweep cannot be written to {folder}: {error.strerror}.") from error
        with state.series:
            return _run(state)


def _is_empty(folder: Path) -> bool:
    """Return whether a folder is empty, except for the lock file of a sweep that could not be written."""
    return folder.is_dir() and all(path.name == ".lock" for path in folder.iterdir())


def resume(folder: Path, quiet: bool = False, trust_code: bool = False) -> SweepRecord:
    """Resume the sweep in a folder and return its record; if the sweep has finished, only return the record."""
    record = sweep_record.read(folder)
    if record is None:
        raise UserError(
            f"there is no sweep in {folder}, because it has no {sweep_record.FILE}: name the folder that `ganherd sweep` wrote."
        )
    request = SweepRequest(
        record.recipe,
        record.vary,
        record.wanted or len(record.trials),
        record.budget,
        record.seeds,
        record.score,
        record.samples,
        record.seed,
        record.overrides,
        record.halves,
        trust_code,
        record.sampler,
        record.rounds,
        is_own=False,
    )
    return sweep(request, folder, quiet)


def _run(state: _Sweep) -> SweepRecord:
    """Plan the rungs if that is not done yet, and train and score all that is missing; return the record."""
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
        trials = record.wanted or len(record.trials)
        record.steps = [(rung.step, rung.trials) for rung in rungs(trials, steps, record.halves)]
        state.write()
    further = f"; the best continue to step {record.steps[-1][0]:,}" if len(record.steps) > 1 else ""
    state.log(
        f"{_count(len(record.trials), 'trial')} in {_count(len(record.groups), 'run')} to step {record.steps[0][0]:,}{further}"
    )
    if record.sampler == "optuna":
        _run_rounds(state, scorer)
        return record
    for step, _ in record.steps[len(record.rungs) :]:
        _run_rung(state, scorer, step)
    return record


def _run_rounds(state: _Sweep, scorer: TrialScorer) -> None:
    """Run a sweep with Optuna: train and score the trials of a round, propose the next one from the scores, repeat."""
    record, (step, _) = state.record, state.record.steps[0]
    while (done := sum(len(scores) for scores in record.round_scores)) < len(record.trials):
        scores: list[TrialScore] = []
        state.series.plan(tasks_of_rounds(record, state.folder))
        for group, recipe in zip(record.groups, state.recipes, strict=True):
            if group.trials[0] >= done:
                _train_to(state, group, recipe, step, [])
                positions = [(trial, position) for position, trial in enumerate(group.trials)]
                with state.series.scoring(state.folder / group.run):
                    scores += scorer.score_trials(state.folder / group.run, positions, record.seeds)
        record.round_scores.append(sorted(scores, key=lambda score: score.trial))
        planned, state.recipes = plan(state.request, record.round_scores)
        record.trials, record.names, record.groups = planned.trials, planned.names, planned.groups
        state.write()
    every = [score for scores in record.round_scores for score in scores]
    record.rungs = [RungResult(step=step, scores=every, left=[score.trial for score in every])]
    state.write()


def _run_rung(state: _Sweep, scorer: TrialScorer, step: int) -> None:
    """Train the remaining trials up to a step, score them, and record which of them continue."""
    record = state.record
    left = record.left
    state.series.plan(tasks_of_rungs(record, state.folder))
    scores = []
    for group, recipe in zip(record.groups, state.recipes, strict=True):
        own = [(trial, position) for position, trial in enumerate(group.trials) if trial in left]
        if own:
            _train_to(state, group, recipe, step, stopped(group.trials, left))
            with state.series.scoring(state.folder / group.run):
                scores += scorer.score_trials(state.folder / group.run, own, record.seeds)
    costs = {score.trial: cost_of(score.value, record.score) for score in scores}
    number = len(record.rungs)
    count = record.steps[number + 1][1] if number + 1 < len(record.steps) else len(costs)
    record.rungs.append(RungResult(step=step, scores=scores, left=survivors(costs, count)))
    state.write()
    best = min(costs, key=lambda trial: (costs[trial], trial))
    value = next(score.value for score in scores if score.trial == best)
    state.log(f"step {step:,}: best {record.names[best]}, {record.score} {value if value is None else f'{value:.4g}'}")


def _train_to(state: _Sweep, group: SweepGroup, recipe: Recipe, step: int, stopped_trials: Sequence[int]) -> None:
    """Train the run of a group up to a step, without the trials that were stopped, unless it has trained so far."""
    from ganherd.training import session

    run, budget = RunFolder(state.folder / group.run), f"train.budget={step}steps"
    try:
        if not run.info_path.is_file():
            planned = state.record.steps[-1][0]  # schedules are those of a trial that is trained to the end
            own = recipe_file.load(recipe, [budget])
            session.train(own, run.path, group.run, planned=planned, series=state.series)
            return
        if run.info.state == "finished" and (run.info.step or 0) >= step:
            state.series.skip("training", run.path)
            return
        replicas = [
            position * recipe.herd.seeds + seed
            for position, trial in enumerate(group.trials)
            if trial in stopped_trials
            for seed in range(recipe.herd.seeds)
        ]
        session.resume(run.path, [budget], trust_code=True, stopping=replicas, series=state.series)
    except Interrupted:
        state.write()
        raise Interrupted("the sweep was stopped, and nothing is lost: the same command resumes it.") from None


def _planned_steps(state: _Sweep, scorer: TrialScorer) -> int:
    """Return for how many steps the best trials train: as the budget says, or as fit into the budget's time.

    For a time budget, the speed of training and scoring is measured.
    """
    from ganherd.training.setup import dry_run

    record = state.record
    unit, amount = parse_budget(record.budget)
    if unit == "steps":
        return int(amount)
    biggest = max(range(len(record.groups)), key=lambda group: len(record.groups[group].trials))
    state.log(Detail("measuring the speed of the herd"))
    facts = dry_run.describe(state.recipes[biggest])
    if unit == "epochs":
        return int(facts["steps"])
    members = facts["members"] / len(record.groups[biggest].trials)  # of one trial, in all of its seeds
    trials = record.wanted or len(record.trials)
    planned = rungs(trials, 1 << 40, record.halves)
    # seconds that are not training: starting runs, scoring, and these measurements
    around = len(planned) * len(record.groups) * record.rounds * facts["warm"]["start_seconds"]
    around += sum(rung.trials for rung in planned) * record.seeds * _seconds_of_a_score(state, scorer)
    around += time.monotonic() - state.began
    left = amount - around
    if left <= 0:
        raise UserError(
            f"--budget {record.budget} is too short for this sweep: it takes {duration(math.ceil(around))} without any training; "
            "give it more time, fewer trials or fewer samples (-n)."
        )
    work = cost(trials, record.halves) * members  # in units of one member that trains to the end
    return max(1, int(left * facts["member_steps_per_second"] / work))


def _seconds_of_a_score(state: _Sweep, scorer: TrialScorer) -> float:
    """Measure how many seconds it takes to score one trial, with an untrained mixture."""
    from ganherd.training.finish import make_mixture
    from ganherd.training.setup.assemble import assemble

    herd = {**state.recipes[0].herd.model_dump(), "trials": [], "seeds": 1}
    mixture = make_mixture(assemble(recipe_file.load({**state.recipes[0].model_dump(), "herd": herd}), True), 0)
    scorer.score_mixture(0, mixture, [0])  # the first time, features of the real data are computed too
    began = time.monotonic()
    scorer.score_mixture(0, mixture, [0])
    return time.monotonic() - began


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
