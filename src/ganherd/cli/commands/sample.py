"""`ganherd sample`: images of a trained mixture as a picture, an array or a folder."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Trust, show
from ganherd.util.errors import UserError


class Where(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[str, typer.Option("-o", "--output", help="grid.png, out.npz, or folder/.")],
    label: Annotated[str | None, typer.Option(help="Only this label, by name or number.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="How many; default: 64.")] = None,
    per_class: Annotated[int | None, typer.Option(min=1, help="So many of every label: a labelled data set.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="How often each label: data (as in the data), uniform, or cat=2,dog=1; default: as the run's recipe says."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Image i of a seed is the same for every n.")] = 0,
    replica: Annotated[int, typer.Option(min=0, help="Which of the stacked seeds.")] = 0,
    device: Annotated[Where, typer.Option(help="Where they are made; auto: on a GPU if there is one.")] = Where.auto,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Sample a trained mixture."""
    from ganherd.mixture import label_weights, sampling
    from ganherd.runs.folder import mixture_of

    mixture_of(run), sampling.check(output)  # what is wrong here is said at once, before torch is there
    how = label_weights.parse(weights) if weights is not None else None
    if per_class is not None and (n is not None or weights is not None):
        raise UserError("--per-class says how many of every label: leave -n and --weights out.")
    if label is not None and weights is not None:
        raise UserError("--weights is p(y) of several labels: leave --label out.")
    from ganherd.features.extract import best_device
    from ganherd.mixture import mixture
    from ganherd.util.meter import ProgressBar

    made = mixture.load(run, trust_code)
    made = label_weights.weighted(made, how, run) if how is not None else made
    if device == Where.cuda and best_device().type != "cuda":
        raise UserError("--device cuda, but PyTorch sees no GPU here; `ganherd doctor` says what this machine has.")
    made = made.to(best_device() if device == Where.auto else device.value)
    count = per_class * len(made.labels) if per_class else n or 64
    with ProgressBar("images", quiet or as_json) as meter:
        meter.at(0, count)
        told = (output, n or 64, label, per_class, seed, replica)
        path = sampling.save(made, *told, watch=lambda done: meter.at(done, count))
    show(json.dumps({"output": str(path), "samples": count, "seed": seed}) if as_json else path)
