"""`ganherd train`: start or resume a run, or show what it would train."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.completion import complete_recipe, complete_run, complete_training
from ganherd.cli.options import (
    Budget,
    Json,
    Quiet,
    Seeds,
    Set,
    Trust,
    Verbose,
    check_unit,
    named_run,
    recipe_overrides,
    refuse,
)
from ganherd.cli.train_command import TrainCommand
from ganherd.util.paths import RUNS

# Titles of groups of options in the help.
EXISTING, SEVERAL, LOOK = "From an existing run", "Several processes", "Without training"


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|PICTURES",
            help="A packaged recipe, a YAML file, or your own data: a folder of images, an .npz or an .npy, for which a recipe "
            "is chosen. Default: digits-wcgan.",
            autocompletion=complete_training,
        ),
    ] = None,
    recipe_name: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="Train this recipe; with your own data, instead of a chosen one.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    sets: Set = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", "--run-dir", help="Folder of the new run. Default: runs/NNNNN-NAME. Under torchrun, use --run-dir."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume this run exactly: a folder, @last or @TAG.",
            callback=named_run,
            autocompletion=complete_run,
            rich_help_panel=EXISTING,
        ),
    ] = None,
    retrain: Annotated[
        str | None,
        typer.Option(
            help="With --resume: retrain these classes of a finished run, e.g. cat,dog or 3.", rich_help_panel=EXISTING
        ),
    ] = None,
    grow: Annotated[
        Path | None,
        typer.Option(
            help="Keep the classes of this finished run, and train the classes that are new in the data.",
            callback=named_run,
            autocompletion=complete_run,
            rich_help_panel=EXISTING,
        ),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            help="Train only these members, e.g. 0-9, as one of several jobs that share --run. Members must never meet.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    budget: Budget = None,
    seeds: Seeds = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of ranks to start on this machine. mpiexec, srun and torchrun start their own.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be trained, its memory and its time.", rich_help_panel=LOOK),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show how each layer would run (kernel, PyTorch or vmap), and why.", rich_help_panel=LOOK
        ),
    ] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Show the run in a browser while it trains; see `ganherd ui`.")
    ] = False,
    trust_code: Trust = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe or your own images, or resume a run, in one process or as a rank of a job."""
    from ganherd.comm.backends.detect import detect

    engine, look = detect(os.environ), dry_run or explain
    in_job, retrains, is_part = engine != "local" or ranks is not None, retrain is not None, members is not None
    refuse(
        (grow and resume, "--grow starts a new run: leave --resume out."),
        (retrains and not resume, "--retrain needs a finished run: name it with --resume."),
        (
            retrains and (data or recipe_name or sets or seeds),
            "--retrain uses the recipe of the run: of its settings, only --budget can be given.",
        ),
        (retrains and in_job, "--retrain runs in one process: leave the ranks out."),
        (resume and run, "--resume uses the folder of the run: leave --run out."),
        (resume and dry_run, "--dry-run is for new runs: use `ganherd status` for this one."),
        (resume and explain, "--explain is for new runs: leave --resume out and name the recipe."),
        (
            is_part and (in_job or resume or run is None),
            "--members is for one of several jobs with the same --run: give it, and neither --ranks nor --resume.",
        ),
        (look and is_part, "--dry-run and --explain show the whole herd: leave --members out."),
        (ui and look, "--ui shows a run that trains: leave --dry-run and --explain out."),
        (
            ui and engine != "local",
            "--ui starts a page next to one process: leave it out of jobs, and start `ganherd ui RUN` on the login node.",
        ),
        (look and in_job, "--dry-run and --explain run in one process: leave --ranks out, and start no job."),
        (
            engine != "local" and ranks,
            "--ranks starts ranks on this machine, but this process already is a rank of a job: leave it out.",
        ),
    )
    if budget is not None and check_unit(budget) and budget.startswith("+"):
        budget = _total_budget(budget, resume, retrains, engine != "local")
    overrides = recipe_overrides(sets, budget, seeds)
    command = TrainCommand(data, run, resume, overrides, trust_code, as_json, verbose, quiet)
    command.take_own_data(recipe_name, grows=grow is not None)
    if grow is not None:
        command.grow(grow)
    if look:
        command.look(explain)
        return
    if retrain is not None:
        command.prepare_retraining(retrain, budget)
    if ui:
        from ganherd.ui.serve import page_during_training

        page: AbstractContextManager[None] = page_during_training(run or resume or RUNS, quiet, trust_code)
    else:
        page = nullcontext()
    with page:
        _start(command, members, engine, ranks, budget)


def _start(command: TrainCommand, members: str | None, engine: str, ranks: int | None, budget: str | None) -> None:
    """Train as the options say: some members only, as a rank of a job, in this process, or as several ranks."""
    if members is not None:
        command.train_part(members)
    elif engine != "local":
        command.train_in_job(engine)
    elif ranks is None or ranks == 1:
        command.show(command.train())
    else:
        command.start_ranks(ranks, budget)


def _total_budget(budget: str, resume: Path | None, retrains: bool, in_job: bool) -> str:
    """Return the whole length of a resumed run for an addition such as `--budget +200steps`.

    Args:
        budget: The addition, which begins with +.
        resume: The run to resume; None is an error, like `retrains` and `in_job`.
        retrains: Whether --retrain is given.
        in_job: Whether this process is a rank of a job.
    """
    refuse(
        (resume is None, f"--budget {budget} makes a run longer: name it with --resume, or leave the + out."),
        (retrains, "--retrain takes the length of the retraining: leave the + of --budget out."),
        (in_job, f"--budget {budget} would grow whenever the job restarts: give the whole length, without the +."),
    )
    from ganherd.runs.longer_budget import longer_budget

    assert resume is not None
    return longer_budget(resume, budget)
