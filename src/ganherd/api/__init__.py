"""Offer the Python API: `train` a recipe or your own data and nets, `resume`, `open`, list `runs`, `load` a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.api.products import MemberWeightFinisher, PictureFinisher, ReportFinisher, ScoreFinisher
from ganherd.api.request import TrainingRequest
from ganherd.api.run import Run
from ganherd.recipe.schema import Recipe
from ganherd.runs.run_list import list_own_runs, list_runs
from ganherd.runs.run_names import named_run
from ganherd.training import session
from ganherd.training.callbacks import Callback
from ganherd.training.finish import Finisher
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.paths import given_path

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture

__all__ = [
    "FINISHERS", "Interrupted", "MemberWeightFinisher", "PictureFinisher", "Recipe", "ReportFinisher", "Run", "ScoreFinisher",
    "UserError", "load", "open", "resume", "runs", "train",
]  # fmt: skip

FINISHERS: tuple[Finisher, ...] = (MemberWeightFinisher(), PictureFinisher(), ScoreFinisher(), ReportFinisher())


def train(
    recipe: str | Path | dict[str, Any] | Recipe | None = None,
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    nets: Any = None,
    budget: str | int | None = None,
    seeds: int | None = None,
    device: str | None = None,
    run: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    trust_code: bool = False,
    finishers: Sequence[Finisher] | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train a recipe, or your own data and nets, in a new run folder.

    Args:
        recipe: The name of a packaged recipe, a file, a mapping or a `Recipe`. Default: chosen for the data; without
            data, digits-wcgan.
        overrides: Settings such as `train.batch=32`, as `--set` takes them. They come last.
        data: Images or points: arrays x or (x, y), a map-style torch `Dataset`, a name such as mnist, a file or a
            folder. Labels may be numbers or names.
        nets: (Generator, Discriminator): classes of plain modules for one GAN, or functions that build one. They may be
            defined anywhere, also in a notebook or a function. Or the section `nets` of a recipe, in which such classes
            may stand.
        budget: The length: 5000steps, 20epochs, 10m, or a number of steps.
        seeds: The number of replicas, copies of the herd with different seeds, which are trained at once.
        device: auto, cpu, cuda, or one GPU such as cuda:1.
        run: The new folder. Default: `runs/NNNNN-NAME`.
        callbacks: Objects whose hooks are called during the training.
        quiet: Print no progress, only warnings.
        trust_code: Also allow TorchScript, and the modules that a recipe file in a run folder names. Modules that your
            own recipe names are always imported.
        finishers: Objects that make files from the trained mixture. Default: member weights, a picture, scores, a
            report.
        sections: Sections of the recipe, such as `optim={"lr_g": 1e-4}`, whose keys replace those of the recipe.

    Returns:
        The finished run.

    Raises:
        UserError: The request has a mistake; the message is one sentence with what to do.
        Interrupted: The training was stopped before its end; `Run.resume` continues it.

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).random((40, 8, 8)), ["cat", "dog"] * 20
    >>> run = train(data=(x, y), budget=2, optim={"lr_g": 1e-4}, run="runs/pets", quiet=True)
    >>> run.sample(3, label="dog").x.shape
    (3, 1, 8, 8)
    """
    if isinstance(run, Mapping):
        raise UserError(
            'run is the new folder: give settings of the section run as overrides, such as ["run.record_every=50"].'
        )
    request = TrainingRequest.of(
        recipe,
        overrides,
        data=data,
        nets=nets,
        budget=budget,
        seeds=seeds,
        device=device,
        sections=sections,
        quiet=quiet,
    )
    request.check_code(trust_code)
    done = session.train(
        request.recipe,
        run,
        request.name,
        quiet,
        finishers=FINISHERS if finishers is None else finishers,
        callbacks=callbacks,
        origin={"recipe": request.name, "changes": request.changes},
    )
    return Run(done.path, callbacks=callbacks, _given=request.given, _trained=request.recipe)


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    nets: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    trust_code: bool = False,
    finishers: Sequence[Finisher] | None = None,
) -> Run:
    """Resume a run from its last checkpoint, exactly as if it had not been interrupted, and return it.

    Args:
        path: The run folder.
        overrides: Settings that may differ, such as a longer `train.budget=5000steps`.
        nets: The nets of the run, if they were defined in a notebook or a function.
        data: The data of the run, if it was given as arrays.
        callbacks: Objects whose hooks are called during the training.
        quiet: Print no progress, only warnings.
        trust_code: Allow code that the run names and that is not ganherd's own.
        finishers: Objects that make files from the trained mixture. Default: member weights, a picture, scores, a
            report.
    """
    run = Run(path, nets=nets, data=data, callbacks=callbacks, trust_code=trust_code)
    return run.resume(overrides=overrides, quiet=quiet, finishers=finishers)


def load(path: str | Path, *, nets: Any = None, trust_code: bool = False) -> Mixture:
    """Return the mixture of a run: its trained generators with their weights and labels.

    Loading executes no code of the run, unless `trust_code` allows it to import the nets that the run names.

    Args:
        path: The run folder.
        nets: The nets of the run, if they were defined in a notebook or a function.
        trust_code: Import the nets that the run names and that are not ganherd's own.
    """
    from ganherd.mixture import mixture

    path = given_path("the run", path)
    return mixture.load(path, trust_code) if nets is None else Run(path, nets=nets, trust_code=trust_code).mixture


def open(run: str | Path = "@last", *, nets: Any = None, data: Any = None, trust_code: bool = False) -> Run:
    """Open a run. No code from it is executed.

    Args:
        run: Its folder, its name in the folder runs, `@last` for the newest one, or `@TAG`.
        nets: See `Run`; likewise the other arguments.
    """
    return Run(named_run(run), nets=nets, data=data, trust_code=trust_code)


def runs(folder: str | Path | None = None) -> list[Run]:
    """Return the runs in a folder and the folders below it, the most recently active one last.

    Runs that cannot be read are left out.

    Args:
        folder: Default: the folder runs, and runs in the current folder itself.
    """
    summaries = (
        list_own_runs(sizes=False) if folder is None else list_runs(given_path("the folder", folder), sizes=False)
    )
    return [Run(one.path) for one in summaries if not one.problem]
