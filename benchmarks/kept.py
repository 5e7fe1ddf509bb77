"""Runs that a benchmark keeps: one that is there is used again only if it was made from the recipe that is asked for now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import Interrupted, UserError


def state(path: Path, recipe: str, settings: Sequence[str]) -> str:
    """`new`, `stopped` or `finished`; a UserError where the run in this folder is another one.

    What decides nothing but the time (engine) and what is written while it trains (run, but its seed) may differ.
    """
    if not path.exists():
        return "new"
    folder, wanted = RunFolder.open(path), recipe_file.load(recipe, settings)
    given = (
        ("nets.", "herd.members:") if isinstance(wanted.herd.members, list) else ()
    )  # nets of the runs it starts from
    free = ("about:", "engine.", "run.", *given)
    other = [
        line
        for line in recipe_file.difference(folder.recipe, wanted)
        if line.startswith("run.seed:") or not line.startswith(free)
    ]
    if other:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        raise UserError(
            f"{path} was trained with other settings ({other[0]}{more}): give another --runs, or move it away."
        )
    return "finished" if folder.info.state == "finished" else "stopped"


def told(main: Callable[[], None]) -> None:
    """Runs a benchmark; what a person can mend, or go on with, is one sentence, as of the commands."""
    try:
        main()
    except (UserError, Interrupted) as why:
        print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
        raise SystemExit(75 if isinstance(why, Interrupted) else 2) from None
