"""One run from its recipe to its report, or from its last checkpoint on."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ganherd import mixture, recipe_file, report
from ganherd.errors import Interrupted, UserError
from ganherd.herd import autotune
from ganherd.herd.engine import Plan, place, rate
from ganherd.herd.state import take_
from ganherd.herd.step import SUMS
from ganherd.recipe import Recipe
from ganherd.run import checkpoint, finish, trackers
from ganherd.run.assemble import Assembly, assemble, set_precision
from ganherd.run.budget import Budget, plan_budget
from ganherd.run.cadence import Cadence
from ganherd.run.folder import RunFolder, next_path, write_aside
from ganherd.run.loop import RunFailed, Trainer
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
    recipe: Recipe, path: str | Path | None = None, name: str = "run", quiet: bool = False, trust_code: bool = True
) -> Run:
    """Trains a recipe in a new run folder. The recipe is the caller's own, so the nets that it names are trusted."""
    say = _teller(quiet)
    if path is not None:  # what is wrong is better said now than after the measuring, or after the training
        RunFolder(path).refuse_existing()
    trackers.check(recipe)
    assembly = assemble(recipe, trust_code)
    finish.member_weights(recipe, assembly)
    for note in assembly.notes:
        say(f"note: {note}")
    set_precision(recipe)
    plan = autotune.choose(assembly.herd, recipe.engine, say)
    torch.set_num_threads(plan.threads)
    place(assembly.herd, plan)
    budget = plan_budget(recipe.train.budget, assembly.steps_per_epoch, lambda: _measure(assembly, plan))
    folder = RunFolder.create(path or next_path(Path("runs"), name))
    with folder.lock():
        try:
            write_aside(folder.recipe_path, recipe_file.dump(recipe))
            folder.write_info(**_facts(assembly, plan, budget), state="running")
        except OSError as error:
            raise UserError(f"nothing can be written to {folder.path}: {error.strerror}.") from error
        return _train(assembly, plan, folder, budget, quiet, None)


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
        assembly = assemble(recipe, trust_code)
        if info.get("data") != assembly.dataset.digest:
            raise UserError(
                f"the data of {folder.path} has changed since it was started (its sha256 differs): it cannot be resumed exactly."
            )
        plan, budget = _recorded(info, folder)
        paced = _paced(info, folder)
        set_precision(recipe)
        resumed = None
        if checkpoint.steps(folder.checkpoints):
            resumed, damaged = checkpoint.newest(
                folder.checkpoints,
                {"g": assembly.herd.g, "d": assembly.herd.d},
                records={"metrics": folder.metrics_path, "events": folder.events_path},
            )
            for sentence in damaged:
                say(f"{sentence}; the checkpoint before it is used.")
            _check_names(assembly, resumed)
            _check_facts(resumed, assembly.herd.size)
            everyone = range(assembly.herd.size)
            take_(assembly.herd.state, resumed.state, everyone, everyone)
        else:
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
        return _train(assembly, plan, folder, budget, quiet, resumed, paced)


def refuse_changes(recipe: Recipe, wanted: Recipe, folder: RunFolder) -> None:
    changes = [line for line in recipe_file.difference(recipe, wanted) if not line.startswith("train.budget:")]
    if changes:
        raise UserError(
            f"{folder.path} was started with another recipe, so it cannot be resumed with this one ({'; '.join(changes)}); "
            "leave the changes out, or start a new run."
        )


def _train(
    assembly: Assembly,
    plan: Plan,
    folder: RunFolder,
    budget: Budget,
    quiet: bool,
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
            trainer = Trainer(assembly, plan, folder, budget, progress, resumed, tracking.record, paced)
            closing.callback(trainer.close)
            progress.say(
                f"{folder.path}: {assembly.herd.size} members, step {trainer.step:,} to {budget.steps:,}, "
                f"{plan.describe(assembly.herd.size)}"
            )
            trainer.event("resume" if resumed else "start", engine=vars(plan), versions=_versions())
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
    made = finish.make_mixture(assembly, trainer.step)
    made.save(folder.mixture)
    finish.write_picture(folder, made, assembly)
    found = finish.write_scores(folder, made, assembly, progress)
    trainer.event("finish", seconds=seconds)
    watch = {**vars(trainer.cadence), "share": round(trainer.watch.seconds / max(trainer.seconds, 1e-9), 5)}
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


# -- what a run is made of ------------------------------------------------------------------------------------------


def _measure(assembly: Assembly, plan: Plan) -> tuple[float, float]:
    """(steps per second, seconds that the checkpoint and the mixture will take)."""
    steps = rate(assembly.herd, plan, 2.0) / assembly.herd.size
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


def _facts(assembly: Assembly, plan: Plan, budget: Budget) -> dict[str, Any]:
    return {
        "versions": _versions(),
        "seed": assembly.recipe.run.seed,
        "git": _git(),
        "host": platform.node(),
        "command": shlex.join(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": vars(plan),
        "threads": plan.threads,
        "budget": vars(budget),
        "members": assembly.herd.size,
        "data": assembly.dataset.digest,
    }


def _recorded(info: dict[str, Any], folder: RunFolder) -> tuple[Plan, Budget]:
    try:
        plan, deadline = Plan(**info["engine"]), info["budget"]["deadline"]
        if plan.name not in ("loop", "fused", "graph") or not (int(plan.chunk) > 0 and 0 < int(plan.threads) <= 4096):
            raise ValueError(plan)
        return plan, Budget(int(info["budget"]["steps"]), None if deadline is None else float(deadline))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder.info_path} does not say which engine and budget the run has; it cannot be resumed exactly."
        ) from error


def _paced(info: dict[str, Any], folder: RunFolder) -> dict[str, Any] | None:
    """How often the members are looked at, where that was found before."""
    try:
        if (paced := info.get("watch")) is not None:
            Cadence.of("auto", paced)
        return paced
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder.info_path} does not say how often the members are looked at; it cannot be resumed exactly."
        ) from error


def _check_names(assembly: Assembly, resumed: checkpoint.Checkpoint) -> None:
    own = {name: tuple(value.shape) for name, value in assembly.herd.state.items()}
    found = {name: tuple(value.shape) for name, value in resumed.state.items() if not name.startswith("watch.")}
    if own != found:
        different = sorted(set(own.items()) ^ set(found.items()))[0]
        raise UserError(f"{resumed.path} does not fit its recipe: {different[0]} has another shape.")


def _check_facts(resumed: checkpoint.Checkpoint, size: int) -> None:
    """Its sha256 says that state.json is whole, not that ganherd wrote it."""
    facts = resumed.facts
    try:
        last_good, best = facts["last_good"], facts["best"]
        whole = [facts["recorded"], *facts["repairs"], *facts["bytes"].values(), last_good or 0, best[1] if best else 0]
        numbers = [*(v for row in facts["sums"] for v in row), facts["seconds"], best[0] if best else 0.0]
        sizes = [len(facts["repairs"]), *(len(row) for row in facts["sums"])]
        fits = all(type(v) is int and v >= 0 for v in whole) and all(isinstance(float(v), float) for v in numbers)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        fits = False
    if not fits or sizes != [size] * (1 + len(SUMS)):
        raise UserError(f"{resumed.path / 'state.json'} is not what ganherd writes: it cannot be resumed.")


def _versions() -> dict[str, str]:
    import numpy

    from ganherd import __version__

    return {
        "ganherd": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def _git() -> str | None:
    """The commit of the folder that the command runs in, where there is one."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=os.getcwd())
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _teller(quiet: bool) -> Any:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
