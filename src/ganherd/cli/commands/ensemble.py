"""`ganherd ensemble`: search the generators of a run that are best together."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Trust, print_json, say, show
from ganherd.recipe.mixture_scores import GOALS, asked_score

_SCORES = "; ".join(f"{', '.join(names)} ({goal})" for goal, names in GOALS.items())


class Search(StrEnum):
    greedy = "greedy"
    evolutionary = "evolutionary"
    neighbourhoods = "neighbourhoods"


def ensemble(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    size: Annotated[int, typer.Option(min=1, help="Maximum number of generators.")] = 5,
    by: Annotated[
        str,
        typer.Option(
            metavar="SCORE",
            help=f"Score to optimise: {_SCORES}; or package.module:function of your own (lower is better).",
        ),
    ] = "fid",
    search: Annotated[
        Search, typer.Option(help="Search method; neighbourhoods weighs each neighbourhood of a grid.")
    ] = Search.greedy,
    samples: Annotated[int, typer.Option("-n", min=2, help="Samples of each generator.")] = 1000,
    network: Annotated[str | None, typer.Option(help="Network of the features; see `ganherd score`.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples and of the search.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search the herd for the few generators that are best together, and save them as RUN/mixture-ensemble."""
    by = asked_score("--by", by)  # before anything is loaded
    from ganherd.scoring import ensembles

    result = ensembles.find(
        run,
        size,
        by,
        search.value,
        samples,
        seed,
        network=network,
        trust_code=trust_code,
        progress=None if quiet or as_json else say,
    )
    if as_json:
        print_json(result.facts())
    else:
        show(str(result))
