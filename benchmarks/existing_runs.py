"""Reuse runs of earlier calls of a benchmark, if they were trained with the recipe that is wanted now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import Interrupted, UserError


def state(path: Path, recipe: str, settings: Sequence[str]) -> str:
    """Return `new`, `stopped` or `finished`, the state of the run in this folder.

    The engine and `run.*` except its seed may differ, as they do not change the result.

    Raises:
        UserError: The run was trained with other settings.
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


def run_main(main: Callable[[], None]) -> None:
    """Run a benchmark; report mistakes and interruptions in one sentence, like the commands of ganherd."""
    try:
        main()
    except (UserError, Interrupted) as why:
        print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
        raise SystemExit(75 if isinstance(why, Interrupted) else 2) from None
