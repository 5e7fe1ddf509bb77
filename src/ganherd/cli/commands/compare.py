"""`ganherd compare`: compare recipes under equal budgets, or classifiers with and without generated images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Set, Trust, log_unless, named_files, names, numbers, print_result, refuse
from ganherd.util.errors import UserError


def compare(
    named: Annotated[list[str], typer.Argument(metavar="RECIPE…", help="Recipes; with --downstream: run folders.")],
    budget: Annotated[
        str | None,
        typer.Option(help="Training of each recipe, all its seeds together, e.g. 10m, 90s, 5000steps, 20epochs."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each recipe (stacked), or of each classifier.")] = 3,
    metrics: Annotated[
        str | None, typer.Option(help="Names of metrics, separated by commas. Default: those of `ganherd score`.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Network of the feature scores; see `ganherd score`.")] = None,
    samples: Annotated[int | None, typer.Option("-n", min=1, help="Samples for each score.")] = None,
    sets: Set = None,
    downstream: Annotated[
        bool,
        typer.Option(
            "--downstream", help="Train classifiers on few real images, with and without generated ones of a run."
        ),
    ] = False,
    per_class: Annotated[
        str | None, typer.Option(help="With --downstream: numbers of real images of each class. Default: 20,50,100.")
    ] = None,
    generated: Annotated[
        int | None, typer.Option(min=1, help="With --downstream: generated images of each class. Default: 1000.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder of the comparison. Default: comparisons/NAMES, or the run folder."),
    ] = None,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train and score recipes under equal budgets, and compare them. If interrupted, the same command continues."""
    log = log_unless(quiet)
    if downstream:
        given = {"--budget": budget, "--metrics": metrics, "--network": network, "-n": samples, "--set": sets}
        why = "applies to recipes: leave it out with --downstream."
        refuse(*((value, f"{option} {why}") for option, value in given.items()))
        counts = numbers("--per-class", per_class or "20,50,100", "20,50,100")
        from ganherd.runs.folder import RunFolder, mixture_of

        for run in named:  # before torch is loaded
            RunFolder.open(run), mixture_of(run)
        from ganherd.compare import downstream as classifiers
        from ganherd.compare import downstream_text

        wanted = classifiers.DownstreamRequest(sorted(set(counts)), seeds, generated or classifiers.GENERATED)
        result = classifiers.measure([Path(run) for run in named], wanted, output, trust_code, log)
        print_result(as_json, {"downstream": result}, downstream_text.text(result))
        return
    refuse((per_class, "--per-class needs --downstream."), (generated, "--generated needs --downstream."))
    if budget is None:
        raise UserError(
            "No budget given. Set how long each recipe may train, e.g. --budget 10m, 90s, 5000steps or 20epochs."
        )
    from ganherd.compare import compare_recipes

    request = compare_recipes.ComparisonRequest.of(
        named, budget, seeds, sets or (), names(metrics), samples, network, trust_code
    )
    folder = output or compare_recipes.default_folder(list(request.recipes))
    facts = compare_recipes.compare(request, folder, quiet, log)
    from ganherd.compare import comparison_page, comparison_text

    files = comparison_page.write(facts, folder)
    print_result(as_json, {"compare": str(folder), **facts}, comparison_text.text(facts) + named_files(files))
