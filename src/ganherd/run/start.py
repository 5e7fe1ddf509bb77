"""One run from its recipe to its report, or from its last checkpoint on."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ganherd import mixture, recipe_file, report
from ganherd.errors import Interrupted, UserError
from ganherd.herd import autotune
from ganherd.herd.engine import Plan, place, rate
from ganherd.herd.state import take_
from ganherd.recipe import Recipe
from ganherd.run import checkpoint, finish, trackers
from ganherd.run.assemble import Assembly, assemble, set_precision
from ganherd.run.budget import Budget, plan_budget
from ganherd.run.folder import RunFolder, next_path, write_aside
from ganherd.run.identity import (
    check_facts,
    check_names,
    check_origins,
    facts_of,
    recorded,
    recorded_meetings,
    recorded_pace,
    refuse_changes,
    versions,
)
from ganherd.run.loop import RunFailed, Trainer
from ganherd.run.meetings import make_strategy, plan_meetings
from ganherd.run.progress import Progress, duration
from ganherd.run.stop import StopRequest


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies and what it says."""

    path: Path
    scores: dict[str, Any]

    @property
    def mixture(self) -> mixture.Mixture:
        return mixture.load(self.path, trust_code=True)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)


def begin(
    recipe: Recipe,
    path: str | Path | None = None,
    name: str = "run",
    quiet: bool = False,
    trust_code: bool = True,
    whole: bool = False,
) -> Run:
    """Trains a recipe in a new run folder. The recipe is the caller's own, so the nets that it names are trusted.

    `whole`: a time budget is all for the training, and the mixture comes after it.
    """
    say = _teller(quiet)
    if path is not None:  # what is wrong is better said now than after the measuring, or after the training
        RunFolder(path).refuse_existing()
    trackers.check(recipe)
    assembly = assemble(recipe, trust_code)
    recipe = assembly.recipe  # with the nets of the runs that it starts from
    finish.member_weights(recipe, assembly)
    for note in assembly.notes:
        say(f"note: {note}")
    set_precision(recipe)
    plan = autotune.choose(assembly.herd, recipe.engine, say)
    torch.set_num_threads(plan.threads)
    place(assembly.herd, plan)
    budget = plan_budget(recipe.train.budget, assembly.steps_per_epoch, lambda: _measure(assembly, plan, whole))
    meetings = plan_meetings(recipe, assembly.steps_per_epoch, budget.steps)
    folder = RunFolder.create(path or next_path(Path("runs"), name))
    with folder.lock():
        try:
            write_aside(folder.recipe_path, recipe_file.dump(recipe))
            folder.write_info(**facts_of(assembly, plan, budget), meetings=meetings, state="running")
        except OSError as error:
            raise UserError(f"nothing can be written to {folder.path}: {error.strerror}.") from error
        return _train(assembly, plan, folder, budget, quiet, meetings, None)


def resume(path: str | Path, overrides: Sequence[str] = (), quiet: bool = False, trust_code: bool = False) -> Run:
    """Goes on with a run exactly where its last checkpoint stands; only its budget may be another one."""
    folder = RunFolder.open(path)
    say = _teller(quiet)
    recipe = folder.recipe
    wanted = recipe_file.load(folder.recipe_path, overrides)
    refuse_changes(recipe, wanted, folder)
    trackers.check(recipe)
    with folder.lock():
        info = folder.info
        begins = not checkpoint.steps(folder.checkpoints)
        assembly = assemble(recipe, trust_code, begins)
        if info.get("data") != assembly.dataset.digest:
            raise UserError(
                f"the data of {folder.path} has changed since it was started (its sha256 differs): it cannot be resumed exactly."
            )
        plan, budget = recorded(info, folder)
        paced = recorded_pace(info, folder)
        set_precision(recipe)
        resumed = None
        if not begins:
            resumed, damaged = checkpoint.newest(
                folder.checkpoints,
                assembly.herd.nets,
                records={"metrics": folder.metrics_path, "events": folder.events_path},
            )
            for sentence in damaged:
                say(f"{sentence}; the checkpoint before it is used.")
            check_names(assembly, resumed)
            check_facts(resumed, assembly.herd.size)
            everyone = range(assembly.herd.size)
            take_(assembly.herd.state, resumed.state, everyone, everyone)
        else:
            check_origins(info, assembly, folder)
            say(f"{folder.path} has no checkpoint: it starts again from its first step.")
        torch.set_num_threads(plan.threads)
        place(assembly.herd, plan)
        if wanted != recipe:
            budget = _extended(assembly, plan, wanted, resumed)
        elif resumed and budget.deadline is not None and resumed.facts.get("over") == budget.deadline:
            budget.end_at(resumed.step)
        checkpoint.sweep(folder.checkpoints)
        try:
            folder.write_info(state="running", budget=vars(budget))
            if wanted != recipe:  # after run.json: a kill between the two leaves a budget that holds
                write_aside(folder.recipe_path, recipe_file.dump(wanted))
        except OSError as error:
            raise Interrupted(f"{error.strerror} while writing to {folder.path}; {_again(folder)}") from error
        return _train(assembly, plan, folder, budget, quiet, recorded_meetings(info, folder), resumed, paced)


def _train(
    assembly: Assembly,
    plan: Plan,
    folder: RunFolder,
    budget: Budget,
    quiet: bool,
    meetings: dict[str, int],
    resumed: checkpoint.Checkpoint | None,
    paced: dict[str, Any] | None = None,
) -> Run:
    names = [assembly.name_of(member) for member in range(assembly.herd.size)]
    progress = Progress(names, quiet)
    again = _again(folder)
    trained = False
    with ExitStack() as closing:
        closing.callback(progress.close)
        try:
            tracking = trackers.Trackers(folder, assembly.recipe)
            closing.callback(tracking.close)
            strategy = make_strategy(assembly, meetings)
            trainer = Trainer(assembly, plan, folder, budget, progress, resumed, tracking.record, paced, strategy)
            closing.callback(trainer.close)
            progress.say(
                f"{folder.path}: {assembly.herd.size} members, step {trainer.step:,} to {budget.steps:,}, "
                f"{plan.describe(assembly.herd.size)}"
            )
            trainer.event("resume" if resumed else "start", engine=vars(plan), versions=versions())
            progress.start(budget.steps)
            with StopRequest() as stop:
                trainer.train(stop)
                trained = True
                progress.close()
                progress.say(f"trained in {duration(trainer.seconds)}; making the mixture…")
                stop.at_once()
                return _finish(trainer, progress)
        except Interrupted as error:
            _leave(folder, "interrupted")
            raise Interrupted(f"{error} Nothing is lost; {again}") from None
        except KeyboardInterrupt:
            _leave(folder, "interrupted")
            what = "after the last step, which is saved" if trained else "at once, without a checkpoint of this moment"
            raise Interrupted(f"stopped {what}; {again}") from None
        except RunFailed:
            _leave(folder, "failed")
            raise
        except OSError as error:  # a disk that is full or gone while records, pictures or the mixture are written
            _leave(folder, "interrupted")
            raise Interrupted(
                f"{error.strerror or error} while writing to {folder.path}; the last checkpoint is whole. {again}"
            ) from error


def _finish(trainer: Trainer, progress: Progress) -> Run:
    assembly, folder, seconds = trainer.assembly, trainer.folder, round(trainer.seconds, 3)
    made = finish.make_mixture(assembly, trainer.step, trainer.strategy.neighbourhoods(trainer.step))
    made.save(folder.mixture)
    finish.write_picture(folder, made, assembly)
    found = finish.write_scores(folder, made, assembly, progress)
    left = trainer.strategy.measured().get("profile")  # of what came after the last record
    trainer.event("finish", seconds=seconds, **({"profile": left} if left else {}))
    here = max(trainer.seconds - trainer.seconds_before, 1e-9)  # by this process, as the seconds of its looks
    watch = {**vars(trainer.cadence), "share": round(trainer.watch.seconds / here, 5)}
    folder.write_info(state="finished", seconds=seconds, step=trainer.step, budget=vars(trainer.budget), watch=watch)
    report.write(folder, mixture=made, dataset=assembly.dataset)
    return Run(folder.path, found)


def _leave(folder: RunFolder, state: str) -> None:
    with suppress(
        OSError
    ):  # on a full disk it stays `running`; without a process that holds the lock, that is `killed`
        folder.write_info(state=state)


def _again(folder: RunFolder) -> str:
    return f"resume it with: ganherd train --resume {shlex.quote(str(folder.path))}"


# -- how long it is ------------------------------------------------------------------------------------------------


def _measure(assembly: Assembly, plan: Plan, whole: bool = False) -> tuple[float, float]:
    """(steps per second, seconds that the checkpoint and the mixture will take; 0 where these are not counted)."""
    steps = rate(assembly.herd, plan, 2.0) / assembly.herd.size
    if whole:
        return steps, 0.0
    began = time.perf_counter()
    finish.make_mixture(assembly, 0)
    return steps, 1.0 + 2.0 * (time.perf_counter() - began)


def _extended(assembly: Assembly, plan: Plan, wanted: Recipe, resumed: checkpoint.Checkpoint | None) -> Budget:
    budget = plan_budget(wanted.train.budget, assembly.steps_per_epoch, lambda: _measure(assembly, plan))
    step, seconds = (resumed.step, float(resumed.facts["seconds"])) if resumed else (0, 0.0)
    if budget.deadline is not None:  # a time counts from the start of the run, not from the resume
        per_second = budget.steps / budget.deadline
        budget.steps = step + max(0, int((budget.deadline - seconds) * per_second))
    if budget.steps < step:
        raise UserError(
            f"the run has done {step:,} steps already, more than the {budget.steps:,} of train.budget={wanted.train.budget}."
        )
    return budget


def _teller(quiet: bool) -> Any:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
