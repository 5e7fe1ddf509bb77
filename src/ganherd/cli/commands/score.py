"""`ganherd score`: score runs against their data, or any samples against any data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ganherd.cli.completion import complete_run
from ganherd.cli.options import (
    Json,
    Quiet,
    Seed,
    Trust,
    Verbose,
    log_unless,
    named_run,
    named_runs,
    names,
    print_screen,
    show_verdict,
)
from ganherd.util.errors import UserError

AIS = "Annealed importance sampling (--metrics ais)"  # a group of options in the help


def score(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, @last or @TAG; several are shown next to each other.",
            callback=named_runs,
            autocompletion=complete_run,
        ),
    ] = None,
    real: Annotated[
        str | None,
        typer.Option(help="Instead of runs: real data, as a run, a folder, an .npz file or a name, e.g. cifar10."),
    ] = None,
    fake: Annotated[
        str | None, typer.Option(help="Samples to score against --real, given in the same ways, or e.g. cifar10:test.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Names of metrics, separated by commas; gam2 compares runs. Default: all quick metrics that fit the data."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Network of the features: inception, classifier, lipizzaner-mnist, pixels, or its FILE.pt or FILE.npz; with "
            "--trust-code any TorchScript, FILE.pt or FILE.pt#sha256=…, or package.module:Class."
        ),
    ] = None,
    head: Annotated[
        Path | None, typer.Option(help="Classifier head for the Inception score: an .npz file with weight and bias.")
    ] = None,
    per: Annotated[str | None, typer.Option(help="Also score each class, member, or neighbourhood of a grid.")] = None,
    samples: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Samples for each score. Default: 1,000; 10,000 for Inception on a GPU."),
    ] = None,
    ais_points: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Held-out images for AIS. Default: 16; on a GPU 100.",
            rich_help_panel=AIS,
        ),
    ] = None,
    ais_variance: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            max=1e9,
            help="Variance σ² of AIS, for pixels in [0, 1]. Default: 0.025.",
            rich_help_panel=AIS,
        ),
    ] = None,
    ais_temperatures: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Temperatures of AIS; more make its bounds tighter. Default: 1,000.",
            rich_help_panel=AIS,
        ),
    ] = None,
    ais_chains: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Chains of AIS for each image. Default: 16.",
            rich_help_panel=AIS,
        ),
    ] = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the scores to this file as JSON.")
    ] = None,
    trust_code: Trust = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Score trained mixtures against their data, or any samples against any data."""
    from ganherd import scoring

    wanted = names(metrics)
    annealing = scoring.Annealing(ais_points, ais_variance, ais_temperatures, ais_chains)
    if annealing != scoring.Annealing() and "ais" not in scoring.known_metrics(wanted, "score"):
        raise UserError("--ais-points and similar options need AIS: add --metrics ais.")
    settings: Any = {"network": network, "head": head, "per": per, "progress": log_unless(quiet)}
    if (real is None) != (fake is None) or (real is None) != bool(runs):
        raise UserError("Nothing to score. Name runs, or give both --real and --fake.")
    if real and fake:
        real, fake = (str(named_run(Path(one))) if one.startswith("@") else one for one in (real, fake))
        scores = scoring.score_sets(real, fake, wanted, samples, seed, trust_code, **settings)
        scored = scoring.ScoredRun({fake: scores}, real)
    else:
        scored = scoring.score_runs(runs or [], wanted, samples, seed, trust_code, annealing=annealing, **settings)
    if output:
        scored.write(output)
    print_screen(as_json, scored.facts(), *scored.screen(verbose))
    if not as_json and wanted is None:
        for verdict in scored.verdicts.values():
            show_verdict(verdict)
