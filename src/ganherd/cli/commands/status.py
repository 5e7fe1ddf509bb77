"""`ganherd status`: show the state of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, show


def status(run: Annotated[Path, typer.Argument(help="A run folder.")], as_json: Json = False) -> None:
    """Show the state of a run: step, rate, time left, members and alarms."""
    from ganherd.runs import run_status, status_text

    standing = run_status.describe(run)
    show(json.dumps(standing.as_json()) if as_json else status_text.text(standing))
