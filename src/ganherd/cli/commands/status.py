"""`ganherd status`: show the state of a run."""

from __future__ import annotations

from ganherd.cli.options import Json, RunFolderArgument, print_result


def status(run: RunFolderArgument, as_json: Json = False) -> None:
    """Show the state of a run: step, rate, time left, members and alarms."""
    from ganherd.runs import run_status, status_text

    standing = run_status.describe(run)
    print_result(as_json, standing.as_json(), status_text.text(standing))
