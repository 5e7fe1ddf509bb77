"""`ganherd compare`: compare recipes under equal budgets, or classifiers with and without generated images."""

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
    log_unless,
    named_files,
    named_run,
    names,
    numbers,
    print_result,
    print_screen,
    refuse,
)
from ganherd.util.text import show


def compare(
    named: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE[:KEY=VALUE]… | RUN…",
            help="Recipes, each with settings of its own if wanted, e.g. digits-wcgan:optim.lr_g=1e-4; or finished runs.",
            autocompletion=complete_recipe,
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            help="Budget of each recipe for all its seeds together, e.g. 10m, 90s, 5000steps, 20epochs. Default: the recipe's."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Compare these values of a setting. May be repeated: all combinations."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each recipe (stacked), or of each classifier.")] = 3,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Names of metrics, separated by commas. Default: those of `ganherd score` and of run.metrics."
        ),
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
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train and score recipes under equal budgets, and compare them; or compare finished runs as they are.

    If interrupted, the same command continues.
    """
    named = [str(named_run(Path(one))) if downstream or one.startswith("@") else one for one in named]
    if downstream:
        given = {
            "--budget": budget,
            "--metrics": metrics,
            "--network": network,
            "-n": samples,
            "--set": sets,
            "--vary": vary,
        }
        why = "applies to recipes: leave it out with --downstream."
        refuse(*((value, f"{option} {why}") for option, value in given.items()))
        counts = numbers("--per-class", per_class or "20,50,100", "20,50,100")
        from ganherd.runs.folder import RunFolder, mixture_of

        for run in named:  # before torch is loaded
            RunFolder.open(run), mixture_of(run)
        from ganherd.compare.downstream import downstream as classifiers
        from ganherd.compare.downstream import downstream_text

        wanted = classifiers.DownstreamRequest(sorted(set(counts)), seeds, generated or classifiers.GENERATED)
        result = classifiers.measure([Path(run) for run in named], wanted, output, trust_code, log_unless(quiet))
        print_result(as_json, {"downstream": result}, downstream_text.text(result))
        return
    refuse((per_class, "--per-class needs --downstream."), (generated, "--generated needs --downstream."))
    if budget is not None:
        check_unit(budget)
    from ganherd.compare import comparison_text
    from ganherd.compare.compare_named import compare as compare_named
    from ganherd.compare.finished import finished_runs

    if finished_runs.are_runs(named):
        given = {"--budget": budget, "--set": sets, "--vary": vary}
        why = "is for recipes: finished runs are compared as they are."
        refuse(*((value, f"{option} {why}") for option, value in given.items()))
    comparison = compare_named(
        *named, budget=budget, seeds=seeds, metrics=names(metrics), samples=samples, network=network, vary=vary or (),
        overrides=sets or (), path=output, trust_code=trust_code, quiet=quiet,
    )  # fmt: skip
    facts, files = comparison.facts, comparison.files
    print_screen(as_json, {"compare": str(comparison.path), **facts}, *comparison_text.screen(facts, verbose))
    if not as_json:
        show(named_files(files).removeprefix("\n"))  # not wrapped, so that the paths can be copied
