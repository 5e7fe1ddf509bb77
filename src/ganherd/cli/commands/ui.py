"""`ganherd ui`: serve the page that shows runs live, and samples of their mixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ganherd.cli.completion import complete_run
from ganherd.cli.options import Trust, named_runs
from ganherd.util.errors import UserError
from ganherd.util.paths import RUNS


def ui(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, folders of runs, @last or @TAG. Default: runs.",
            callback=named_runs,
            autocompletion=complete_run,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to bind to. If other machines can reach it, a random token protects the page.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port. Default: 8421, or the next free one; 0: any.")
    ] = None,
    token: Annotated[bool, typer.Option("--token", help="Require a random token even on this machine.")] = False,
    trust_code: Trust = False,
    newest: Annotated[bool, typer.Option("--newest", hidden=True)] = False,
) -> None:
    """Watch runs in a browser, live, and sample their mixtures. The page is offline and read-only."""
    from ganherd.ui import serve

    roots = runs or [RUNS]
    for root in roots:
        if not root.exists() and not newest and runs:
            raise UserError(f"there is no folder {root}; name a run, or a folder of runs.")
    serve.check_installed()
    serve.serve(roots, host, port, token, trust_code, serve.TRAINING if newest else "#/")
