"""`ganherd report`: write one page for each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Trust, say, show


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page for each run."""
    from ganherd import report as pages

    log = None if quiet else say
    paths = [str(pages.write(run, trust_code=trust_code, draw=True, progress=log)) for run in runs]
    show(json.dumps({"reports": paths}) if as_json else "\n".join(paths))
