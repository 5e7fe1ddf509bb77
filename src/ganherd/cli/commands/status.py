"""`ganherd status` and `ganherd check`: show the state of a run, and give the verdict on it."""

from __future__ import annotations

from typing import Annotated

import typer

from ganherd.cli.options import (
    Json,
    Quiet,
    RunFolderArgument,
    Seed,
    Trust,
    coloured_verdict,
    log_unless,
    print_json,
    print_result,
)
from ganherd.util.terminal.screen import Columns, Styled, show_screen


def status(run: RunFolderArgument, as_json: Json = False) -> None:
    """Show the state of a run: step, rate, time left, members and alarms."""
    from ganherd.runs import run_status, status_text

    standing = run_status.describe(run)
    print_result(as_json, standing.as_json(), status_text.text(standing))


def check(
    run: RunFolderArgument,
    samples: Annotated[int, typer.Option("-n", min=1, help="Samples of each seed that are judged.")] = 1000,
    seed: Seed = 0,
    again: Annotated[bool, typer.Option("--again", help="Judge the run even if it has a verdict.")] = False,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Give the verdict on a run and each member. Exit code: 0 good, 1 not good, 2 it cannot be judged."""
    from ganherd.runs.results.verdict_record import style_of
    from ganherd.scoring.verdicts.run_verdict import check_run

    verdict = check_run(
        run, samples, seed, trust_code, log_unless(quiet or as_json), again or samples != 1000 or seed != 0
    )
    if as_json:
        print_json({"run": str(run), **verdict.as_json(), "exit_code": verdict.exit_code})
    else:
        show_screen(coloured_verdict(verdict))
        if len(verdict.members) > 1:
            several = len({one.replica for one in verdict.members}) > 1
            names = [one.name + f" of replica {one.replica}" * several for one in verdict.members]
            rows = [
                (name, Styled(one.word, style_of(one.word)), one.reason)
                for name, one in zip(names, verdict.members, strict=True)
            ]
            show_screen("", Columns(("member", "verdict", "reason"), rows, whole={0, 1}))
    raise typer.Exit(verdict.exit_code)
