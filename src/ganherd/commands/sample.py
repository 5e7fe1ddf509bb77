"""`ganherd sample`: images of a trained mixture as a picture, an array or a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.commands.options import Json, Trust


def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[str, typer.Option("-o", "--output", help="grid.png, out.npz, or folder/.")],
    label: Annotated[str | None, typer.Option(help="Only this label, by name or number.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 64,
    per_class: Annotated[int | None, typer.Option(min=1, help="So many of every label.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Image i of a seed is the same for every n.")] = 0,
    replica: Annotated[int, typer.Option(min=0, help="Which of the stacked seeds.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Sample a trained mixture."""
    from ganherd import sampling
    from ganherd.run.folder import mixture_of

    mixture_of(run), sampling.check(output)  # what is wrong here is said at once, before torch is there
    from ganherd import mixture

    drawn = sampling.draw(mixture.load(run, trust_code), n, label, per_class, seed, replica)
    path = sampling.write(drawn, output)
    print(json.dumps({"output": str(path), "samples": len(drawn), "seed": seed}) if as_json else path)
