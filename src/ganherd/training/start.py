"""One run from its recipe to its report, or from its last checkpoint on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ganherd.comm.backends.local import Local
from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd import rng
from ganherd.herd.engine.device import missing_gpu, set_precision
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.schema import Recipe
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, next_path, write_aside
from ganherd.training.budget import plan_budget, too_short
from ganherd.training.conclude import Run
from ganherd.training.course import train_on
from ganherd.training.health import look_interval
from ganherd.training.ranks.catch_up import bring_back
from ganherd.training.ranks.recovery import Recovery
from ganherd.training.ranks.restarts import reached
from ganherd.training.ready import planned, ready, settle_in, shared, stand_by
from ganherd.training.recording import trackers
from ganherd.training.run_length import extended, measure
from ganherd.training.setup import net_guard
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import never_due, plan_meetings
from ganherd.training.setup.disk import advice_on, check_disk, disk_need
from ganherd.training.setup.identity import (
    check_data,
    check_origins,
    facts_of,
    placed,
    recorded,
    recorded_meetings,
    recorded_pace,
    recorded_part,
    recorded_streams,
    refuse_changes,
    take_up,
)
from ganherd.training.variants import phases
from ganherd.util import files
from ganherd.util import text as printed
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.memory import refused_if_too_large
from ganherd.util.standard_streams import safe_streams
from ganherd.util.user_code import importable_from


@safe_streams("stderr", "stdout")
@refused_if_too_large()
def begin(
    recipe: Recipe,
    path: str | Path | None = None,
    name: str = "run",
    quiet: bool = False,
    trust_code: bool = True,
    whole: bool = False,
    job: Communicator | None = None,
    part: range | None = None,
) -> Run:
    """Trains a recipe in a new run folder. The recipe is the caller's own, so the nets that it names are trusted.

    `whole`: a time budget is all for the training, and the mixture comes after it. `job`: the ranks that all call this.
    `part`: the only members that are trained in this folder, which ends without a mixture: see `parts`.
    """
    if phases.pending(recipe) is not None:
        if part is not None or (job is not None and job.latest.world_size > 1):
            phases.refuse(recipe)
        return _two_phases(recipe, path, name, quiet, trust_code, whole)
    rescue = Recovery((job or Local()).latest)
    with importable_from(recipe.code):
        return rescue.through(
            lambda: _begin(rescue, recipe, path, name, quiet, trust_code, whole, part),
            lambda where: _resume(rescue, where, (), quiet, trust_code),
            path,
        )


def _two_phases(recipe: Recipe, path: str | Path | None, name: str, quiet: bool, trust_code: bool, whole: bool) -> Run:
    """Another recipe first, in a folder beside the run's, and the run from there; the same call goes on where one was stopped."""
    where, say = Path(path) if path is not None else next_path(Path("runs"), name), _teller(quiet)
    RunFolder(where).refuse_existing()
    folder = RunFolder(where).first
    first, then = phases.before(recipe), phases.after(recipe, folder.path)
    trackers.check(then)  # what is wrong with the herd itself is better said now than after the first phase
    phases.foreseen(phases.after(recipe), first)
    say(f"first phase: {first.train.budget}, in {folder.path}")
    try:
        if not folder.info_path.is_file():
            begin(first, folder.path, name, quiet, trust_code, whole)
        else:
            refuse_changes(folder.recipe, first, folder)
            if folder.info.get("state") != "finished" or folder.recipe.train.budget != first.train.budget:
                with trust.vouched(first):
                    resume(folder.path, [f"train.budget={first.train.budget}"], quiet, trust_code)
    except Interrupted:
        raise Interrupted(
            f"stopped in the first phase, and nothing is lost: the same command with --run {where} goes on from there."
        ) from None
    say(f"second phase: {then.train.budget}, in {where}")
    return begin(then, where, name, quiet, trust_code, whole)


def _begin(
    rescue: Recovery,
    recipe: Recipe,
    path: str | Path | None,
    name: str,
    quiet: bool,
    trust_code: bool,
    whole: bool,
    part: range | None,
) -> Run:
    job = rescue.job
    say = _teller(quiet or job.rank > 0)

    def acceptable() -> None:  # what is wrong is better said now than after the measuring, or after the training
        if path is not None:
            RunFolder(path).refuse_existing()
        trackers.check(recipe)

    run_on_all_ranks(job, acceptable)
    ranks, assembly = ready(recipe, job, trust_code, begins=True, part=part)
    rescue.placed(ranks)
    if assembly is None:
        return Run(stand_by(ranks, rescue).absolute(), {})
    recipe = assembly.recipe  # with the nets of the runs that it starts from
    for note in [*assembly.notes, *missing_gpu(recipe)]:
        say(f"note: {note}")
    set_precision(recipe)
    net_guard.examine(assembly, say)
    plan = planned(assembly, recipe.engine, say)
    own = settle_in(assembly, plan)
    budget = plan_budget(recipe.train.budget, assembly.steps_per_epoch, lambda: measure(assembly, own, whole))
    meetings = plan_meetings(recipe, assembly.steps_per_epoch, budget.steps)
    for note in [*too_short(recipe.train.budget, budget.steps), *never_due(recipe, meetings, budget.steps)]:
        say(f"note: {note}")
    where = Path(path) if path is not None else next_path(Path("runs"), name)
    for note in run_on_all_ranks(ranks.member_comm, lambda: _disk_notes(assembly, budget.steps, where)):
        say(f"note: {note}")
    paced = vars(run_on_all_ranks(ranks.member_comm, lambda: look_interval.planned(assembly)))
    facts = facts_of(assembly, plan, budget) | {"meetings": meetings, "watch": paced, "state": "running"}
    facts |= {} if part is None else {"part": [part.start, part.stop]}
    with ExitStack() as held:

        def found() -> RunFolder:
            where = path or next_path(Path("runs"), name)
            return _founded(where, recipe, facts, held, rescue) if ranks.is_first else RunFolder(where)

        folder = shared(ranks, run_on_all_ranks(ranks.member_comm, found), rescue)
        return train_on(rescue, assembly, own, folder, budget, quiet, meetings, None, paced)


def _founded(path: Path | str, recipe: Recipe, facts: dict[str, Any], held: ExitStack, rescue: Recovery) -> RunFolder:
    """A new run folder, locked, with its recipe and its facts."""
    folder = RunFolder.create(path)
    held.enter_context(rescue.lock(folder))
    try:
        write_aside(folder.recipe_path, recipe_file.dump(recipe))
        folder.write_info(**facts)
    except OSError as error:
        raise UserError(f"nothing can be written to {folder.path}: {error.strerror}.") from error
    return folder


@safe_streams("stderr", "stdout")
def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    trust_code: bool = False,
    job: Communicator | None = None,
) -> Run:
    """Goes on with a run exactly where its last checkpoint stands; only its budget may be another one, and whether it is scored.

    `job`: the ranks that all call this; they need not be as many as before.
    """
    rescue = Recovery((job or Local()).latest)
    rescue.path = Path(path)

    def go_on(where: Path) -> Run:
        return _resume(rescue, where, overrides, quiet, trust_code)

    return rescue.through(lambda: go_on(Path(path)), go_on)


@refused_if_too_large(is_resumed=True)
def _resume(rescue: Recovery, path: Path, overrides: Sequence[str], quiet: bool, trust_code: bool) -> Run:
    """The same, with copies in memory where ranks were lost."""
    job = rescue.job
    say = _teller(quiet or job.rank > 0)
    with ExitStack() as held:

        def opened() -> tuple[RunFolder, Recipe, Recipe]:
            folder = RunFolder.open(path)
            recipe, wanted = folder.recipe, recipe_file.load(folder.recipe_path, overrides)
            refuse_changes(recipe, wanted, folder)
            recipe = recipe.model_copy(update={"run": wanted.run})
            trackers.check(recipe)
            if job.rank == 0:
                held.enter_context(rescue.lock(folder))
            return folder, recipe, wanted

        folder, recipe, wanted = run_on_all_ranks(job, opened)
        held.enter_context(importable_from(recipe.code))
        info = folder.info
        held.enter_context(rng.using(run_on_all_ranks(job, lambda: recorded_streams(info, folder))))
        rescue.reached = reached(folder) if job.rank == 0 else None
        begins = not checkpoint.steps(folder.checkpoints)
        part, before = recorded_part(info, folder), info.get("ranks")
        ranks, assembly = ready(
            recipe, job, trust_code, begins, lambda made: check_data(info, made, folder), part, before
        )
        rescue.placed(ranks)
        resumed = rescue.remembered(ranks, folder)
        if assembly is None:
            return Run(stand_by(ranks, rescue).absolute(), {})
        everyone = ranks.member_comm
        plan, budget = run_on_all_ranks(everyone, lambda: recorded(info, folder))
        paced = vars(run_on_all_ranks(everyone, lambda: look_interval.planned(assembly, recorded_pace(info, folder))))
        meetings = run_on_all_ranks(everyone, lambda: recorded_meetings(info, folder))
        set_precision(recipe)
        net_guard.examine(assembly, say)
        run_on_all_ranks(everyone, lambda: net_guard.refuse(assembly, plan.name))
        if (info.get("ranks") or {}).get("members") != (now := placed(ranks) or {}).get("members"):
            plan = planned(assembly, recipe.engine.model_copy(update={"name": plan.name}), say)
        own = settle_in(assembly, plan)
        if resumed is not None:
            bring_back(rescue, assembly, own, folder, paced, resumed, say)
        source = "memory" if resumed else "start" if begins else "checkpoint"
        if not begins:
            if resumed is None:
                records = {"metrics": folder.metrics_path, "events": folder.events_path}
                resumed, damaged = checkpoint.newest_of_all(folder.checkpoints, assembly.herd.nets, ranks, records)
                for sentence in damaged:
                    say(f"{sentence}; the checkpoint before it is used.")
            run_on_all_ranks(everyone, partial(take_up, assembly, resumed))
        else:
            run_on_all_ranks(everyone, partial(check_origins, info, assembly, folder))
            say(f"{folder.path} has no checkpoint: it starts again from its first step.")
        if wanted != recipe:
            budget = run_on_all_ranks(everyone, partial(extended, assembly, own, wanted, resumed))
        elif resumed and budget.deadline is not None and resumed.facts.get("over") == budget.deadline:
            budget.end_at(resumed.step)

        if resumed is None or resumed.step < budget.steps:
            for note in run_on_all_ranks(everyone, lambda: _disk_notes(assembly, budget.steps, folder.path)):
                say(f"note: {note}")

        def go_on() -> None:
            checkpoint.sweep(folder.checkpoints)
            files.sweep(folder.path)
            facts = {"ranks": now, "engine": vars(plan)} if now or info.get("ranks") else {}
            folder.write_info(state="running", budget=vars(budget), watch=paced, **facts)
            if wanted != folder.recipe:  # after run.json: a kill between the two leaves a budget that holds
                write_aside(folder.recipe_path, recipe_file.dump(wanted))

        try:
            ranks.run_io(lambda: go_on() if ranks.is_first else None)
        except OSError as error:
            why = f"{error.strerror} while writing to {folder.path}. {advice_on(error)}"
            ranks.finish(Interrupted(f"{why}Nothing is lost; resume it with: {rescue.again()}"))
        folder = shared(ranks, folder, rescue)
        return train_on(rescue, assembly, own, folder, budget, quiet, meetings, resumed, paced, source)


def _disk_notes(assembly: PreparedHerd, steps: int, folder: Path) -> list[str]:
    """Check the disk on the rank that writes the records; raises `UserError` if the run cannot fit."""
    return check_disk(disk_need(assembly, steps), folder) if assembly.ranks.is_first else []


def _teller(quiet: bool) -> Any:
    return (lambda text: None) if quiet else printed.say
