"""`ganherd best` and `ganherd ensemble`: choose the best generator of a run, or the few that are best together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ganherd.cli.options import Json, Quiet, RunFolderArgument, Trust, log_unless, print_result
from ganherd.recipe.mixture_scores import GOALS, asked_score

_SCORES = "; ".join(f"{', '.join(names)} ({goal})" for goal, names in GOALS.items())
Samples = Annotated[int, typer.Option("-n", min=2, help="Samples of each generator.")]
Network = Annotated[str | None, typer.Option(help="Network of the features; see `ganherd score`.")]


def best(
    run: RunFolderArgument,
    by: Annotated[
        str,
        typer.Option(
            metavar="SCORE", help=f"Score: gam2 (judged by the discriminators, as in the GAP paper); {_SCORES}."
        ),
    ] = "fid",
    judges: Annotated[
        list[Path] | None,
        typer.Option(help="For gam2: a run whose discriminators judge. May be repeated. Default: this run's own."),
    ] = None,
    samples: Samples = 1000,
    network: Network = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose the best generator of a herd, and save it as RUN/mixture-best."""
    by = by if by == "gam2" else asked_score("--by", by)  # before anything is loaded
    from ganherd.scoring.best_member import choose_best

    log = log_unless(quiet or as_json)
    result = choose_best(
        run, by, samples, seed, judges=judges or (), network=network, trust_code=trust_code, progress=log
    )
    print_result(as_json, result.facts(), result)


def ensemble(
    run: RunFolderArgument,
    size: Annotated[int, typer.Option(min=1, help="Maximum number of generators.")] = 5,
    by: Annotated[
        str,
        typer.Option(
            metavar="SCORE",
            help=f"Score to optimise: {_SCORES}; or package.module:function of your own (lower is better).",
        ),
    ] = "fid",
    search: Annotated[
        Literal["greedy", "evolutionary", "neighbourhoods"],
        typer.Option(help="Search method; neighbourhoods weighs each neighbourhood of a grid."),
    ] = "greedy",
    samples: Samples = 1000,
    network: Network = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples and of the search.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search the herd for the few generators that are best together, and save them as RUN/mixture-ensemble."""
    by = asked_score("--by", by)  # before anything is loaded
    from ganherd.scoring import ensembles

    log = log_unless(quiet or as_json)
    result = ensembles.find(run, size, by, search, samples, seed, network=network, trust_code=trust_code, progress=log)
    print_result(as_json, result.facts(), result)
