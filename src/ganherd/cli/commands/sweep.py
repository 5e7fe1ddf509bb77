"""`ganherd sweep`: train many settings of a recipe as one computation, and rank them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.completion import complete_recipe
from ganherd.cli.options import (
    Json,
    Quiet,
    Set,
    Trust,
    Verbose,
    check_unit,
    named_files,
    print_screen,
    refuse,
)
from ganherd.util.text import shortened, show


def sweep(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Packaged recipe or file.", autocompletion=complete_recipe),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B|LOW..HIGH", help="Setting to vary: a list of values, or a range. May be repeated."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=2, help="Number of trials. Default: all combinations of lists, or 16 with a range."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Steps or epochs of the best trials, or the time of the whole sweep. Default: the recipe's."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of each trial.")] = 1,
    score: Annotated[str, typer.Option(help="Metric by which trials are ranked.")] = "fid",
    samples: Annotated[int, typer.Option("-n", min=2, help="Number of samples for each score.")] = 1000,
    halving: Annotated[
        bool, typer.Option("--halving/--no-halving", help="Stop the worse half of the trials early, several times.")
    ] = True,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="even|optuna",
            help="How trials are proposed: evenly over all ranges (default), or in rounds by Optuna's TPE from the scores so far.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=2, help="Number of rounds with --sampler optuna, in which all trials train to the end. Default: 4."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the settings that are drawn from ranges.")] = 0,
    sets: Set = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep of this folder.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder. Default: sweeps/RECIPE,KEYS.")] = None,
    trust_code: Trust = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train many settings of a recipe as one computation, stop the worse ones early, and rank them.

    If interrupted, the same command continues.
    """
    given = {
        "RECIPE": recipe,
        "--vary": vary,
        "--budget": budget,
        "--set": sets,
        "-o": output,
        "--trials": trials,
        "--sampler": sampler,
        "--rounds": rounds,
        "--seeds": seeds != 1,
        "--score": score != "fid",
        "-n": samples != 1000,
        "--no-halving": not halving,
        "--seed": seed,
    }
    if resume is not None:
        why = "is recorded in the sweep: leave it out with --resume."
        refuse(*((value, f"{option} {why}") for option, value in given.items()))
    refuse(
        (sampler not in (None, "even", "optuna"), f"--sampler {sampler}: choose even or optuna."),
        (
            rounds is not None and sampler != "optuna",
            "--rounds is for --sampler optuna: add it, or leave --rounds out.",
        ),
        (
            resume is None and not recipe,
            "name the recipe to vary, e.g. ganherd sweep digits-wcgan --vary optim.lr_g=1e-5..1e-2.",
        ),
    )
    from ganherd.sweep import ranking, run_sweep, sweep_files

    if resume is not None:
        folder = resume
        record = run_sweep.resume(folder, quiet or as_json, trust_code)
    else:
        assert recipe is not None
        request = run_sweep.SweepRequest(
            recipe, vary or (), trials, check_unit(budget), seeds, score, samples, seed, sets or (), halving, trust_code,
            "optuna" if sampler == "optuna" else "even", rounds,
        )  # fmt: skip
        keys = ",".join(dimension.key for dimension in request.dimensions)
        folder = output or Path("sweeps") / shortened(f"{Path(recipe).name.removesuffix('.yaml')},{keys}")
        record = run_sweep.sweep(request, folder, quiet or as_json)
    written = sweep_files.write(record, folder)
    blocks = ranking.screen(record, verbose)
    print_screen(as_json, {"sweep": str(folder), "answer": ranking.answer(record), **record.model_dump()}, *blocks)
    if not as_json:
        show(named_files({"record": folder / "sweep.json", **written}).removeprefix("\n"))
        if "recipe" in written:
            show(f"{'train it':<8} {ranking.train_command(record)}")
