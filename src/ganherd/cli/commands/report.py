"""`ganherd report`: write one page for each run."""

from __future__ import annotations

from ganherd.cli.options import Json, Quiet, Runs, Trust, log_unless, print_result


def report(runs: Runs, trust_code: Trust = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Write one self-contained HTML page for each run."""
    from ganherd import report as pages

    log = log_unless(quiet)
    paths = [str(pages.write(run, trust_code=trust_code, draw=True, progress=log)) for run in runs]
    print_result(as_json, {"reports": paths}, "\n".join(paths))
