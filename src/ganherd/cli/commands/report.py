"""`ganherd report`: write one page about a run, or one that compares several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.options import Json, Quiet, Runs, Trust, log_unless, print_result

Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="File of the page. Default: report.html in the run folder; for several runs, report-A-vs-B.html here.",
    ),
]


def report(
    runs: Runs, output: Output = None, trust_code: Trust = False, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Write one self-contained HTML page about a run, or one that compares several runs."""
    log = log_unless(quiet)
    if len(runs) == 1:
        from ganherd import report as pages

        path = pages.write(runs[0], trust_code=trust_code, draw=True, progress=log, output=output)
    else:
        from ganherd.compare.finished import runs_report

        path = runs_report.write(runs, output, trust_code, log)
    print_result(as_json, {"reports": [str(path)]}, str(path))
