"""`ganherd score`: runs against their data, or any samples against any data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ganherd.cli.options import Json, Quiet, Trust, print_json, say, show
from ganherd.util.errors import UserError


def score(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, side by side.")] = None,
    real: Annotated[
        str | None, typer.Option(help="Instead of runs: a run, a folder, an .npz, or data as cifar10.")
    ] = None,
    fake: Annotated[
        str | None, typer.Option(help="What is scored against --real: the same kinds; cifar10:test too.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between (gam2 compares runs); default: all that fit the data and are quick."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="inception, classifier, lipizzaner-mnist, pixels, its FILE.pt or FILE.npz; with --trust-code any "
            "TorchScript, FILE.pt or FILE.pt#sha256=…, or package.module:Class."
        ),
    ] = None,
    head: Annotated[
        Path | None, typer.Option(help="Classifier of Inception for its score: .npz with weight, bias.")
    ] = None,
    per: Annotated[str | None, typer.Option(help="Also of each: class, member, or neighbourhood of a grid.")] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "-n",
            min=1,
            help="Samples for each score; default: 1,000; 10,000 for Inception on a GPU. Of AIS alone: images.",
        ),
    ] = None,
    ais_points: Annotated[
        int | None, typer.Option(min=1, help="Held-out images for AIS; default: 16, on a GPU 100.")
    ] = None,
    ais_variance: Annotated[
        float | None, typer.Option(min=1e-9, max=1e9, help="σ² of AIS, for pixels in [0, 1]; default: 0.025.")
    ] = None,
    ais_temperatures: Annotated[
        int | None, typer.Option(min=1, help="Of AIS; default: 1,000. More bring its bounds together.")
    ] = None,
    ais_chains: Annotated[int | None, typer.Option(min=1, help="Of AIS, for each image; default: 16.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write them to this file too, as JSON.")] = None,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score trained mixtures against their data, or any samples against any data."""
    from ganherd import scoring

    names = metrics.split(",") if metrics else None
    annealing = scoring.Annealing(ais_points, ais_variance, ais_temperatures, ais_chains)
    if annealing != scoring.Annealing() and "ais" not in scoring.known_metrics(names, "score"):
        raise UserError("--ais-points and its like say how AIS is measured: add it, as --metrics ais.")
    settings: Any = {"network": network, "head": head, "per": per, "progress": None if quiet else say}
    if (real is None) != (fake is None) or (real is None) != bool(runs):
        raise UserError("name runs to score, or give both --real and --fake.")
    if real and fake:
        scored = scoring.ScoredRun(
            {fake: scoring.score_sets(real, fake, names, samples, seed, trust_code, **settings)}, real
        )
    else:
        scored = scoring.score_runs(runs or [], names, samples, seed, trust_code, annealing=annealing, **settings)
    if output:
        scored.write(output)
    if as_json:
        print_json(scored.facts())
    else:
        show(str(scored))
