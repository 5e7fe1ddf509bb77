"""`ganherd sample`: draw samples of a trained mixture into a picture, an array, a table or a folder."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ganherd.cli.options import Json, Quiet, RunFolderArgument, Trust, log_unless, print_result
from ganherd.util.errors import UserError


def sample(
    run: RunFolderArgument,
    output: Annotated[
        str,
        typer.Option("-o", "--output", help="File or folder to write, e.g. grid.png, out.npz, table.csv or folder/."),
    ],
    label: Annotated[str | None, typer.Option(help="Only this label, by name or number.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Number of samples. Default: 64.")] = None,
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Number of samples of every label, for a labelled data set.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the labels: data (as in the data), uniform, or e.g. cat=2,dog=1. Default: those of the recipe."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the samples; image i of a seed is the same for every n.")
    ] = 0,
    replica: Annotated[int, typer.Option(min=0, help="Number of the replica to sample from.")] = 0,
    member: Annotated[int | None, typer.Option(min=0, help="Only this member of the herd, by its number.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Device to sample on; auto uses a GPU if there is one.")
    ] = "auto",
    portable: Annotated[
        bool,
        typer.Option(
            "--portable", help="Draw as exported models do: sample i has the seed SEED + i. See `ganherd export`."
        ),
    ] = False,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Sample a trained mixture."""
    from ganherd.mixture import label_weights, sample_files
    from ganherd.runs.folder import RunFolder, mixture_of, step_without_mixture

    step = step_without_mixture(run)
    mixture_of(run) if step is None else RunFolder.open(run)  # report mistakes before torch is loaded
    sample_files.check(output)
    wanted = label_weights.parse(weights) if weights is not None else None
    if per_class is not None and (n is not None or weights is not None):
        raise UserError("--per-class sets the number of samples of every label: leave -n and --weights out.")
    if member is not None and weights is not None:
        raise UserError("--weights applies to several members: leave --member out.")
    if label is not None and weights is not None:
        raise UserError("--weights applies to several labels: leave --label out.")
    from ganherd.features.extract import best_device
    from ganherd.mixture import mixture
    from ganherd.util.meter import ProgressBar

    unfinished = {}
    if step is None:
        trained = mixture.load(run, trust_code)
    else:
        from ganherd.training.variants.unfinished import load_unfinished

        trained = load_unfinished(run, trust_code)
        unfinished = {"step": trained.step}
        log_unless(quiet)(
            f"note: {run} is not finished: these are samples of all members as they were at its checkpoint of step {trained.step:,}"
        )
    if member is not None:
        trained = trained.alone(member)
        if (only := trained.label_of[member]) >= 0 and (label is not None or per_class is not None):
            raise UserError(
                f"--member {member} generates {trained.labels[only]!r} only: leave --label and --per-class out."
            )
    trained = label_weights.weighted(trained, wanted, run) if wanted is not None else trained
    trained = trained.portable() if portable else trained
    if device == "cuda" and best_device().type != "cuda":
        raise UserError("--device cuda, but PyTorch sees no GPU here; see `ganherd doctor`.")
    trained = trained.to(best_device() if device == "auto" else device)
    count = per_class * len(trained.labels) if per_class else n or 64
    with ProgressBar(trained.kind, quiet or as_json) as meter:
        meter.at(0, count)
        request = (output, n or 64, label, per_class, seed, replica)
        path = sample_files.save(trained, *request, watch=lambda done: meter.at(done, count), run=run)
    print_result(as_json, {"output": str(path), "samples": count, "seed": seed, **unfinished}, path)
