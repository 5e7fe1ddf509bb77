"""`ganherd ensemble`: the few generators of a run that are best together."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Trust, print_json, say, show
from ganherd.recipe.mixture_scores import LESS, MORE, asked_score


class Search(StrEnum):
    greedy = "greedy"
    evolutionary = "evolutionary"
    neighbourhoods = "neighbourhoods"


def ensemble(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    size: Annotated[int, typer.Option(min=1, help="At most so many generators.")] = 5,
    by: Annotated[
        str,
        typer.Option(
            metavar="SCORE",
            help=f"What is searched for: the least {', '.join(LESS)}; the most {', '.join(MORE)}; or the least of a "
            "function of your own, package.module:function.",
        ),
    ] = "fid",
    search: Annotated[
        Search, typer.Option(help="How; neighbourhoods: the weights of each of a grid's.")
    ] = Search.greedy,
    samples: Annotated[int, typer.Option("-n", min=2, help="Samples of each generator.")] = 1000,
    network: Annotated[str | None, typer.Option(help="Whose features; as for `ganherd score`.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search the whole herd for the few generators that are best together, and keep them as RUN/mixture-ensemble."""
    by = asked_score("--by", by)  # before anything is loaded
    from ganherd.scoring import ensembles

    found = ensembles.find(
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
        print_json(found.facts())
    else:
        show(str(found))
