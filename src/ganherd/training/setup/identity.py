"""Collect the facts that run.json records about a run, and check that a resumed run agrees with them."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ganherd.comm.ranks import Ranks
from ganherd.herd import rng
from ganherd.herd.engine.engines import Plan
from ganherd.herd.lowering import ops_onednn
from ganherd.herd.state import take_
from ganherd.herd.step.step import SUMS
from ganherd.recipe import recipe_file
from ganherd.recipe.plugins.recipe_plugins import code_digest, plugins_of, record_of
from ganherd.recipe.schema import Recipe
from ganherd.recipe.trust import modules_of
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.models import RunInfo
from ganherd.training.budget import Budget
from ganherd.training.callbacks import Callback
from ganherd.training.health.look_interval import LookInterval
from ganherd.training.ranks.restarts import launcher
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.member_settings import schedule_spans
from ganherd.training.variants.finetune import as_resolved
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.objects import memory_objects

if TYPE_CHECKING:
    from ganherd.training.session import Session


def facts_of(session: Session) -> JsonObject:
    """Return the facts that run.json records when a run is started. Called by all ranks together."""
    prepared, plan, part = session.herd, session.plan, session.source.part
    return {
        "versions": versions(),
        "seed": prepared.recipe.run.seed,
        "streams": rng.version(),
        "git": _git(),
        "host": platform.node(),
        **({"launcher": name} if (name := launcher()) else {}),
        "command": _typed(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": vars(plan),
        "threads": plan.threads,
        "budget": session.budget.record(),
        "members": prepared.size,
        "data": prepared.dataset.digest,
        **({"objects": objects} if (objects := memory_digests(prepared.recipe)) else {}),
        **({"callbacks": [callback_record(each) for each in users]} if (users := session.options.callbacks) else {}),
        **({"plugins": plugins} if (plugins := record_of(prepared.recipe)) else {}),
        **({"origins": prepared.ranks.all_gather_list(prepared.origins)} if prepared.origins else {}),
        **({"ranks": ranks} if (ranks := placed(prepared.ranks)) else {}),
        "meetings": session.meetings,
        "watch": vars(session.looks),
        "state": "running",
        **({"part": [part.start, part.stop]} if part else {}),
    }


def _typed(words: Sequence[str]) -> str:
    """Return the command as a user types it: the program `ganherd` without its folder, another program as it is.

    >>> _typed(["/home/me/.venv/bin/ganherd", "train", "my pictures"]), _typed(["/src/ganherd/__main__.py", "train"])
    ("ganherd train 'my pictures'", 'ganherd train')
    >>> _typed(["scripts/mine.py", "3"])
    'scripts/mine.py 3'
    """
    program = Path(*words[:1])  # an embedded Python may have no arguments
    is_own = program.name == "ganherd" or program.parts[-2:] == ("ganherd", "__main__.py")
    return shlex.join(["ganherd", *words[1:]] if is_own else words)


def memory_digests(recipe: Recipe) -> dict[str, str]:
    """Return the sha256 of each object in memory (a net or a data set) that a recipe names, by its name."""
    names = [name for name in (*recipe.own_names, recipe.data.source) if memory_objects.is_in_memory(name)]
    return {name: memory_objects.find(name).digest for name in names}


def callback_record(callback: Callback) -> JsonObject:
    """Return what run.json records of a user's callback."""
    name, changes = type(callback).__name__, callback.changes_result
    return {"name": name, "sha256": callback.fingerprint(), "changes_result": changes}


def check_callbacks(info: RunInfo, callbacks: Sequence[Callback], folder: RunFolder) -> None:
    """Raise a `UserError` unless a resumed run has the same callbacks that change its result as before."""
    before = {each.sha256: each.name for each in info.callbacks or [] if each.changes_result}
    now = {each.fingerprint(): type(each).__name__ for each in callbacks if each.changes_result}
    if missing := [name for digest, name in before.items() if digest not in now]:
        how = "is another one now" if missing[0] in now.values() else "is missing"
        raise UserError(
            f"{folder.path} was trained with the callback {missing[0]}, which changes its result and {how}: give the same one with "
            "callbacks= of Run.resume."
        )
    if new := [name for digest, name in now.items() if digest not in before]:
        raise UserError(
            f"{folder.path} was started without the callback {new[0]}, which changes its result: leave it out, or start a new run."
        )


def refuse_objects(recipe: Recipe, callbacks: Sequence[Callback], ranks: int) -> None:
    """Raise a `UserError` if a recipe names objects in memory that ranks cannot share, or that do not exist here."""
    names = [name for name in (*recipe.own_names, recipe.data.source) if memory_objects.is_in_memory(name)]
    if ranks > 1 and (names or callbacks):
        what = memory_objects.label_of(names[0]) if names else type(callbacks[0]).__name__
        raise UserError(
            f"{what} is an object of one Python process, which several ranks cannot share: train in one process, or put nets into "
            "a module and data into a file."
        )
    for name in names:
        memory_objects.find(name)


def placed(ranks: Ranks) -> JsonObject | None:
    """Return the members of each rank, and facts about the ranks, for run.json; None if there is only one process."""
    if ranks.is_single_process:
        return None
    members = [list(own) for own in ranks.placement.ranks]
    speeds = {} if ranks.weights is None else {"weights": list(ranks.weights)}
    return {"communicator": ranks.job.name, "hosts": list(ranks.job.hosts), "members": members, **speeds}


def recorded(info: RunInfo, folder: RunFolder) -> tuple[Plan, Budget]:
    """Return the engine and the budget that run.json records."""
    check_joined(info, folder)
    engine, budget = info.engine, info.budget
    if engine is None or budget is None:
        raise UserError(
            f"{folder.info_path} does not say which engine and budget the run has; it cannot be resumed exactly."
        )
    if engine.operations == "cpu-onednn" and not ops_onednn.is_available():
        raise UserError(
            f"{folder.path} was trained with matrix products by oneDNN, which this PyTorch lacks: resume it with a PyTorch "
            "that has oneDNN."
        )
    plan = Plan(engine.name, engine.chunk, engine.threads, engine.device, engine.operations)
    return plan, Budget(budget.steps, budget.deadline)


def changed_plugins(info: RunInfo, recipe: Recipe) -> list[str]:
    """Return a note for each plug-in whose code has changed since the run was started."""
    recorded = {(plugin.kind, plugin.name): plugin for plugin in info.plugins or []}
    notes = []
    for registry, name in plugins_of(recipe):
        before = recorded.get((registry.kind, name))
        if before is None or not before.sha256:
            continue
        if registry.is_known(name) and registry.may_load(name):
            registry[name]  # imported now, so that its code can be compared
        if (digest := code_digest(registry.module_of(name))) and digest != before.sha256:
            version = registry.package_of(name)[1]
            versions = f" (version {before.version} then, {version} now)" if before.version != version else ""
            notes.append(f"the code of the {registry.kind} {name} has changed since the run was started{versions}.")
    return notes


def check_joined(info: RunInfo, folder: RunFolder) -> None:
    """Raise a `UserError` for a run in parts, unless the parts are joined and ended at the same step."""
    if info.state == "parts":
        raise UserError(
            f"{folder.path} is trained in parts that are not all finished: continue with `ganherd train --members`; "
            f"`ganherd status {folder.path}` lists the parts."
        )
    if info.parts and not saved_steps(folder.checkpoints):
        raise UserError(
            f"the parts of {folder.path} ended at different steps, so there is no checkpoint of them all: it can be sampled "
            "and scored, but not trained further."
        )


def recorded_looks(info: RunInfo, folder: RunFolder) -> LookInterval | None:
    """Return how often the health of members is checked according to run.json; None if that is not recorded."""
    if info.watch is None or info.watch.every is None:
        return None
    if info.watch.first is None:
        raise UserError(
            f"{folder.info_path} does not say how often the members are looked at; it cannot be resumed exactly."
        )
    return LookInterval(info.watch.every, info.watch.first)


def recorded_meetings(info: RunInfo, recipe: Recipe, folder: RunFolder) -> dict[str, int]:
    """Return the spans that run.json records: the steps between meetings, and those of schedules, by name."""
    meetings = dict(info.meetings or {})
    if missing := [name for name in (*recipe.strategy.spans, *schedule_spans(recipe)) if name not in meetings]:
        raise UserError(
            f"{folder.info_path} does not say after how many steps members meet ({', '.join(missing)}); it cannot be resumed "
            "exactly."
        )
    return meetings


def recorded_streams(info: RunInfo, folder: RunFolder) -> int:
    """Return the version of the random streams that run.json records; 1 for older runs, which record none."""
    version = 1 if info.streams is None else info.streams
    if version not in rng.VERSIONS:
        raise UserError(
            f"{folder.info_path} names an unknown version of the random streams. Resume the run with the ganherd that started it."
        )
    return version


def recorded_part(info: RunInfo, folder: RunFolder) -> range | None:
    """Return the members that this folder trains if it is a part of a run; None if it trains all."""
    if info.part is None:
        return None
    if not info.part[0] < info.part[1]:
        raise UserError(f"{folder.info_path} does not say which members it is about; it cannot be resumed.")
    return range(*info.part)


def refuse_changes(recipe: Recipe, wanted: Recipe, folder: RunFolder, data_may_move: bool = False) -> None:
    """Raise a `UserError` if a run is to be resumed with another recipe; some keys may differ, such as `train.budget`.

    The others are `run.scores`, `run.metrics` and `code`.

    Args:
        recipe: The recipe of the run folder.
        wanted: The recipe to resume with.
        data_may_move: Whether `data.source` may differ, too; then the data itself is compared when it is read.
    """
    if others := set(modules_of(recipe)) - set(modules_of(wanted)):
        raise UserError(f"{folder.path} names code that this recipe does not ({min(others)}): choose another --run.")
    wanted = as_resolved(wanted, recipe)
    free = ["train.budget:", "run.scores:", "run.metrics:", "code:"]  # the user's modules may have moved
    if data_may_move:
        free.append("data.source:")
    changes = [line for line in recipe_file.difference(recipe, wanted) if not line.startswith(tuple(free))]
    if changes:
        raise UserError(
            f"{folder.path} was started with another recipe, so it cannot be resumed with this one ({'; '.join(changes)}); "
            "leave the changes out, or start a new run."
        )


def take_up(prepared: PreparedHerd, resumed: checkpoint.Checkpoint) -> None:
    """Check that a checkpoint fits the herd, and copy its state into the herd."""
    check_names(prepared, resumed)
    check_facts(resumed, prepared.size)
    everyone = range(prepared.herd.num_members)
    take_(prepared.herd.state, resumed.state, everyone, everyone)


def check_names(prepared: PreparedHerd, resumed: checkpoint.Checkpoint) -> None:
    """Raise a `UserError` if the tensors of a checkpoint have other names or shapes than those of the herd."""
    own = {name: tuple(value.shape) for name, value in prepared.herd.state.items()}
    saved = {
        name: tuple(value.shape)
        for name, value in resumed.state.items()
        if not name.startswith(("watch.", "meet.", "rest."))
    }
    if own != saved:
        different = sorted(set(own.items()) ^ set(saved.items()))[0]
        raise UserError(f"{resumed.path} does not fit its recipe: {different[0]} has another shape.")


def check_facts(resumed: checkpoint.Checkpoint, size: int) -> None:
    """Raise a `UserError` if the lists in state.json have another length than the number of members.

    A file from a stranger can have a valid sha256, so its content has to be checked.
    """
    meta = resumed.meta
    lengths = {len(meta.repairs), len(meta.counted_from or meta.repairs), *map(len, meta.sums)}
    if len(meta.sums) != len(SUMS) or lengths != {size}:
        raise UserError(f"{resumed.path / 'state.json'} is not what ganherd writes: it cannot be resumed.")


def versions() -> dict[str, str]:
    """Return the versions of ganherd, PyTorch, NumPy and Python."""
    import numpy

    from ganherd.util.version import __version__

    return {
        "ganherd": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def _git() -> str | None:
    """Return the git commit of the current folder; None if it is not a repository."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=os.getcwd()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
