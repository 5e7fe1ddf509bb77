"""`ganherd compare`: recipes under equal budgets; or, with --downstream, classifiers with and without a run's images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ganherd.cli.options import Json, Quiet, Set, Trust, print_json, say, show
from ganherd.util.errors import UserError


def compare(
    named: Annotated[list[str], typer.Argument(metavar="RECIPE…", help="Recipes; with --downstream: run folders.")],
    budget: Annotated[
        str | None, typer.Option(help="For each recipe, all its seeds together: 10m, 90s, 5000steps, 20epochs.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each recipe (stacked), or of each classifier.")] = 3,
    metrics: Annotated[
        str | None, typer.Option(help="Names with commas between; default: those of `ganherd score`.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Of the feature scores, as for `ganherd score`.")] = None,
    samples: Annotated[int | None, typer.Option("-n", min=1, help="Samples for each score.")] = None,
    sets: Set = None,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Did it help my classifier? Few real images, with and without a run's.")
    ] = False,
    per_class: Annotated[
        str | None, typer.Option(help="--downstream: real images of each class; default: 20,50,100.")
    ] = None,
    generated: Annotated[
        int | None, typer.Option(min=1, help="--downstream: generated images of each class; default: 1000.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder of the comparison; default: comparisons/NAMES, or the run's."),
    ] = None,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare recipes under equal budgets: trained, scored, told apart or not. Killed, the same command goes on."""
    tell = None if quiet else say
    if downstream:
        given = {"--budget": budget, "--metrics": metrics, "--network": network, "-n": samples, "--set": sets}
        _refuse(given, "is for recipes: leave it out with --downstream.")
        _downstream(named, _counts(per_class or "20,50,100"), seeds, generated, output, trust_code, as_json, tell)
        return
    _refuse({"--per-class": per_class, "--generated": generated}, "goes with --downstream.")
    if budget is None:
        raise UserError("say how long each recipe may train: --budget 10m (or 90s, 5000steps, 20epochs).")
    from ganherd.compare import compare_recipes

    names = metrics.split(",") if metrics else None
    asked = compare_recipes.ComparisonRequest.of(
        named, budget, seeds, list(sets or []), names, samples, network, trust_code
    )
    folder = output or compare_recipes.default_folder(list(asked.recipes))
    facts = compare_recipes.compare(asked, folder, quiet, tell)
    from ganherd.compare import comparison_page
    from ganherd.compare import comparison_text as showing

    made = comparison_page.write(facts, folder)
    if as_json:
        print_json({"compare": str(folder), **facts})
        return
    show(showing.text(facts))
    show("\n" + "\n".join(f"{what:<8} {path}" for what, path in made.items()))


def _downstream(
    runs: list[str],
    per_class: list[int],
    seeds: int,
    generated: int | None,
    output: Path | None,
    trust_code: bool,
    as_json: bool,
    tell: Any,
) -> None:
    from ganherd.compare import downstream, downstream_text

    asked = downstream.DownstreamRequest(per_class, seeds, generated or downstream.GENERATED)
    found = downstream.measure([Path(run) for run in runs], asked, output, trust_code, tell)
    if as_json:
        print_json({"downstream": found})
    else:
        show(downstream_text.text(found))


def _refuse(options: Mapping[str, Any], why: str) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"{name} {why}")


def _counts(text: str) -> list[int]:
    found = [int(n) if n.strip().isdecimal() else 0 for n in text.split(",")]
    if not all(found):
        raise UserError(f"--per-class {text}: give numbers of images with commas between, as 20,50,100.")
    return sorted(set(found))
