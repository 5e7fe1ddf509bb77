"""All checks before a run's first step, in the order in which they are made.

1. `check_request`: the folder can take a run, the packages that the recipe asks for are installed, and its metrics score one run.
   Nothing is loaded yet.
2. `check_herd`: the weights of the members and the needs of the strategy fit the data. Nothing is measured yet.
3. `check_nets`: the device, whether plug-ins keep members separate, and whether engines train the nets as plain PyTorch does.
4. `check_length`: the run is long enough for what the recipe plans.
5. `check_space`: the run fits on its disk.

Memory is not checked in advance: if it runs out before the first step, the error is reported in one sentence
(`util/memory.py`). A check raises `UserError` if the run cannot work, and returns notes about what the user should
know.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd.checks import plugin_rows
from ganherd.herd.engine.device import missing_gpu, set_precision
from ganherd.herd.engine.engines import Plan
from ganherd.recipe.plugins.recipe_plugins import plugins_of
from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget, too_short
from ganherd.training.finish import member_weights
from ganherd.training.recording.trackers import trackers_of
from ganherd.training.setup import net_guard
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import strategy_class
from ganherd.training.setup.disk import check_disk, disk_need
from ganherd.util.errors import UserError
from ganherd.util.registry import AUGMENTATIONS, LOSSES, METRICS


def check_request(recipe: Recipe, new_folder: str | Path | None = None) -> None:
    """Check what can be checked without data: the run folder, trackers and metrics.

    Args:
        new_folder: The folder of a new run, if the user named one.
    """
    if new_folder is not None:
        RunFolder(new_folder).refuse_existing()
    trackers_of(recipe)
    for entry in recipe.run.metrics:
        name = entry if isinstance(entry, str) else entry.name
        if METRICS.may_load(name) and METRICS[name].contest:
            raise UserError(
                f"run.metrics: {name} compares runs with each other; use `ganherd score --metrics {name} RUN RUN`."
            )


def check_herd(prepared: PreparedHerd) -> None:
    """Check that `run.weights` names labels of the data, and that the strategy gets what it needs."""
    member_weights(prepared)
    strategy_class(prepared.recipe).refuse_impossible(prepared)


def check_nets(prepared: PreparedHerd, log: Callable[[str], None], plan: Plan | None = None) -> list[str]:
    """Check that the nets are trained as plain PyTorch trains them, and that plug-ins keep members separate.

    Notes for the user are logged and returned.

    Args:
        log: Called with messages for the user.
        plan: The recorded engine of a run that is resumed; None for a new run.
    """
    notes = [] if plan else [*prepared.notes, *missing_gpu(prepared.recipe)]
    for note in notes:
        log(f"note: {note}")
    set_precision(prepared.recipe)
    check_plugins(prepared.recipe, (lambda why: log(f"note: {why}")) if plan else None)
    net_guard.examine(prepared, log, plan)
    if plan:
        run_on_all_ranks(prepared.ranks.member_comm, lambda: net_guard.refuse(prepared, plan.name))
    return notes


def check_plugins(recipe: Recipe, note: Callable[[str], None] | None = None) -> None:
    """Raise a `UserError` for losses and augmentations of plug-ins that do not treat every member separately.

    Args:
        note: For a run that is resumed: called if a plug-in keeps state from call to call, instead of the error.
    """
    for registry, name in plugins_of(recipe):
        try:
            _check_plugin(registry, name, recipe)
        except plugin_rows.KeepsState as error:
            if note is None:
                raise
            note(str(error))


def _check_plugin(registry: object, name: str, recipe: Recipe) -> None:
    """Check one plug-in of a recipe, if it is a loss or an augmentation."""
    if registry is LOSSES:
        plugin_rows.check_loss(name, LOSSES[name].build(recipe.loss.settings_by_name.get(name)))
    elif registry is AUGMENTATIONS:
        for augmentation in recipe.train.augment:
            if name == (augmentation if isinstance(augmentation, str) else augmentation.name):
                plugin_rows.check_augmentation(name, augmentation)


def check_length(recipe: Recipe, meetings: dict[str, int], budget: Budget) -> list[str]:
    """Return notes if a budget is too short to learn anything, or ends before the strategy's first meeting.

    Args:
        meetings: The steps between meetings, by name.
    """
    return [*too_short(recipe.train.budget, budget), *recipe.strategy.settings.never_due(meetings, budget.steps)]


def check_space(prepared: PreparedHerd, steps: int, folder: Path) -> list[str]:
    """Check the free disk space on the first rank, and return its warnings there. Called by all ranks."""
    ranks = prepared.ranks
    return run_on_all_ranks(
        ranks.member_comm, lambda: check_disk(disk_need(prepared, steps), folder) if ranks.is_first else []
    )
