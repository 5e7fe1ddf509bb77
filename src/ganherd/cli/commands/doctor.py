"""`ganherd doctor`: check what this machine has, and how to get what is missing; prepare it for a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Set, Trust, log_unless, print_result, recipe_overrides, refuse


def doctor(
    warm: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Compile and measure what this recipe needs on this machine, so that its runs start at once.",
        ),
    ] = None,
    sets: Set = None,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check what this machine has, what it is needed for, and how to get what is missing."""
    refuse((sets and warm is None, "--set changes a recipe: name it with --warm."))
    if warm is not None:
        _warm_up(warm, recipe_overrides(sets, None, None), trust_code, as_json, quiet)
        return
    from ganherd.machine_check import examine

    rows = examine()
    width = max(len(row["what"]) for row in rows)
    lines = []
    for row in rows:
        mark, found = ("✓", row["found"]) if row["found"] else ("–", "not here")
        need = f"  ({row['needed_for']})" if row["needed_for"] else ""
        lines.append(f"{mark} {row['what']:<{width}}  {found}{need}")
        if row["how_to_get"]:
            lines.append(f"  {'':<{width}}  {row['how_to_get']}")
    print_result(as_json, {"rows": rows}, "\n".join(lines))


def _warm_up(recipe: str, overrides: list[str], trust_code: bool, as_json: bool, quiet: bool) -> None:
    """Carry out `ganherd doctor --warm`: compile and measure what a recipe needs here, and print the result."""
    from dataclasses import asdict

    from ganherd.recipe import recipe_file, trust
    from ganherd.util.meter import ProgressBar

    loaded = recipe_file.load(recipe, overrides)
    trust.check_recipe(loaded, recipe, trust_code)
    from ganherd import warm_up

    with ProgressBar("kernels compiled", quiet) as bar:
        result = warm_up.warm(loaded, log_unless(quiet), bar.at)
    print_result(as_json, asdict(result), result.describe())
