"""What makes a run this run: the facts that run.json records of it, and what a resume holds against them."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import torch

from ganherd.comm.ranks import Ranks
from ganherd.herd import rng
from ganherd.herd.engine.engines import Plan
from ganherd.herd.state import take_
from ganherd.herd.step.step import SUMS
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe
from ganherd.recipe.trust import modules_of
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget
from ganherd.training.health import look_interval
from ganherd.training.ranks.restarts import launcher
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.member_data import MemberData
from ganherd.training.variants.finetune import as_resolved
from ganherd.util.errors import UserError
from ganherd.util.registry import ENGINES


def facts_of(assembly: PreparedHerd, plan: Plan, budget: Budget) -> dict[str, Any]:
    """What run.json says from the first moment on."""
    return {
        "versions": versions(),
        "seed": assembly.recipe.run.seed,
        "streams": rng.version(),
        "git": _git(),
        "host": platform.node(),
        **({"launcher": name} if (name := launcher()) else {}),
        "command": shlex.join(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": vars(plan),
        "threads": plan.threads,
        "budget": vars(budget),
        "members": assembly.size,
        "data": assembly.dataset.digest,
        **({"origins": assembly.ranks.all_gather_list(assembly.origins)} if assembly.origins else {}),
        **({"ranks": ranks} if (ranks := placed(assembly.ranks)) else {}),
    }


def placed(ranks: Ranks) -> dict[str, Any] | None:
    """Which rank has which members; nothing where there is one."""
    if ranks.is_single_process:
        return None
    members = [list(own) for own in ranks.placement.ranks]
    speeds = {} if ranks.weights is None else {"weights": list(ranks.weights)}
    return {"communicator": ranks.job.name, "hosts": list(ranks.job.hosts), "members": members, **speeds}


def recorded(info: dict[str, Any], folder: RunFolder) -> tuple[Plan, Budget]:
    """The engine and the budget with which the run was started: it goes on with these."""
    check_joined(info, folder)
    try:
        plan, deadline = Plan(**info["engine"]), info["budget"]["deadline"]
        if plan.name not in ENGINES or not (int(plan.chunk) > 0 and 0 < int(plan.threads) <= 4096):
            raise ValueError(plan)
        return plan, Budget(int(info["budget"]["steps"]), None if deadline is None else float(deadline))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder.info_path} does not say which engine and budget the run has; it cannot be resumed exactly."
        ) from error


def check_joined(info: dict[str, Any], folder: RunFolder) -> None:
    """A run that was trained in parts goes on as a whole once they are joined, if they ended at the same step."""
    if info.get("state") == "parts":
        raise UserError(
            f"{folder.path} is trained in parts that are not all finished: go on with `ganherd train --members`, as "
            f"`ganherd status {folder.path}` says."
        )
    if info.get("parts") and not checkpoint.steps(folder.checkpoints):
        raise UserError(
            f"the parts of {folder.path} ended at different steps, so there is no checkpoint of them all: it can be sampled "
            "and scored, but not trained further."
        )


def recorded_pace(info: dict[str, Any], folder: RunFolder) -> dict[str, Any] | None:
    """Return what run.json says of how often the members are looked at; None: nothing."""
    try:
        look_interval.recorded(info.get("watch"))
        return info.get("watch")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder.info_path} does not say how often the members are looked at; it cannot be resumed exactly."
        ) from error


def recorded_streams(info: dict[str, Any], folder: RunFolder) -> int:
    """Return the version of the random streams that the run draws from; runs from before there were versions have the first."""
    found = info.get("streams", 1)
    if type(found) is not int or found not in rng.VERSIONS:
        raise UserError(
            f"{folder.info_path} names an unknown version of the random streams. Resume the run with the ganherd that started it."
        )
    return found


def recorded_meetings(info: dict[str, Any], folder: RunFolder) -> dict[str, int]:
    """The spans between meetings, in steps, with which the run was started."""
    found = info.get("meetings", {})
    if not isinstance(found, dict) or not all(type(v) is int and v >= 0 for v in found.values()):
        raise UserError(f"{folder.info_path} does not say when members meet; it cannot be resumed exactly.")
    return dict(found)


def recorded_part(info: dict[str, Any], folder: RunFolder) -> range | None:
    """The only members of the recipe's that are trained in this folder; none: all are."""
    found = info.get("part")
    if found is None:
        return None
    if not (
        isinstance(found, list) and len(found) == 2 and all(type(v) is int for v in found) and 0 <= found[0] < found[1]
    ):
        raise UserError(f"{folder.info_path} does not say which members it is about; it cannot be resumed.")
    return range(*found)


def check_data(info: dict[str, Any], made: MemberData, folder: RunFolder) -> None:
    """A run goes on with the data that it was started with."""
    if info.get("data") != made.dataset.digest:
        raise UserError(
            f"the data of {folder.path} has changed since it was started (its sha256 differs): it cannot be resumed exactly."
        )


def check_origins(info: dict[str, Any], assembly: PreparedHerd, folder: RunFolder) -> None:
    """A run that begins again starts from what it started from."""
    if info.get("origins", []) != assembly.ranks.all_gather_list(assembly.origins):
        raise UserError(f"the runs that {folder.path} starts from have changed: it cannot be resumed exactly.")


def refuse_changes(recipe: Recipe, wanted: Recipe, folder: RunFolder) -> None:
    """Of a recipe that is resumed, only the budget may be another one, and whether it is scored."""
    if others := set(modules_of(recipe)) - set(modules_of(wanted)):
        raise UserError(f"{folder.path} names code that this recipe does not ({min(others)}): choose another --run.")
    wanted = as_resolved(wanted, recipe)
    free = ("train.budget:", "run.scores:", "code:")  # its modules may lie elsewhere now
    changes = [line for line in recipe_file.difference(recipe, wanted) if not line.startswith(free)]
    if changes:
        raise UserError(
            f"{folder.path} was started with another recipe, so it cannot be resumed with this one ({'; '.join(changes)}); "
            "leave the changes out, or start a new run."
        )


def take_up(assembly: PreparedHerd, resumed: checkpoint.Checkpoint) -> None:
    """The herd as a checkpoint holds it."""
    check_names(assembly, resumed)
    check_facts(resumed, assembly.size)
    everyone = range(assembly.herd.num_members)
    take_(assembly.herd.state, resumed.state, everyone, everyone)


def check_names(assembly: PreparedHerd, resumed: checkpoint.Checkpoint) -> None:
    """The checkpoint holds this herd: the same tensors of the same shapes."""
    own = {name: tuple(value.shape) for name, value in assembly.herd.state.items()}
    found = {
        name: tuple(value.shape)
        for name, value in resumed.state.items()
        if not name.startswith(("watch.", "meet.", "rest."))
    }
    if own != found:
        different = sorted(set(own.items()) ^ set(found.items()))[0]
        raise UserError(f"{resumed.path} does not fit its recipe: {different[0]} has another shape.")


def check_facts(resumed: checkpoint.Checkpoint, size: int) -> None:
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


def versions() -> dict[str, str]:
    import numpy

    from ganherd.util.version import __version__

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
