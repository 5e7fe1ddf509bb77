"""`ganherd export`: write a trained mixture as files that work without ganherd."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ganherd.cli.options import Json, RunFolderArgument, Trust, print_result
from ganherd.util.errors import UserError, counted
from ganherd.util.text import size


def export(
    run: RunFolderArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder (torch, hub) or file (.onnx, .html) to write.")
    ],
    kind: Annotated[
        Literal["torch", "onnx", "hub", "html"],
        typer.Option(
            "--format",
            help="torch: safetensors and a loader that needs only PyTorch; onnx: one graph with the inputs label and seed; "
            "hub: a folder with a model card for the Hugging Face Hub; html: a page that draws samples in a browser.",
        ),
    ] = "torch",
    member: Annotated[int | None, typer.Option(min=0, help="Number of a member to export alone.")] = None,
    replica: Annotated[int, typer.Option(min=0, help="Number of the replica to export.")] = 0,
    license: Annotated[
        str, typer.Option(help="Licence that the model card names, e.g. mit or cc-by-4.0; only for --format hub.")
    ] = "",
    trust_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Export a trained mixture as files that work without ganherd. Exported samples are compared with ganherd's own."""
    from ganherd.export.write_export import check_target, write_export
    from ganherd.runs.folder import mixture_of

    if license and kind != "hub":
        raise UserError(f"--license is for the model card of --format hub: leave it out with --format {kind}.")
    mixture_of(run)  # report mistakes before torch is loaded
    check_target(output, kind)
    record = write_export(run, output, kind, member, replica, license, trust_code)
    lines = (
        f"{record.path}  {size(record.num_bytes)}, {counted(record.members, 'members')}, {record.parameters:,} parameters",
        f"checked with {record.program}: {record.checked} samples differ from `ganherd sample --portable` by at most "
        f"{record.difference:.2g} {record.unit}",
    )
    facts = {
        "output": str(record.path),
        "format": kind,
        "bytes": record.num_bytes,
        "members": record.members,
        "parameters": record.parameters,
        "checked": record.checked,
        "checked_with": record.program,
        "largest_difference": record.difference,
        "unit": record.unit,
    }
    print_result(as_json, facts, "\n".join(lines))
