"""Short names of runs on the command line: `@last`, and tags such as `@best`, which are stored in `runs/tags.json`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ganherd.runs.folder import RunFolder
from ganherd.runs.run_list import newest_run
from ganherd.util import files
from ganherd.util.errors import UserError, few
from ganherd.util.paths import RUNS
from ganherd.util.text import did_you_mean

LAST = "last"
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_MOST_BYTES = 1 << 20  # a larger tags.json is not read


def named_run(word: str | Path) -> Path:
    """Return the run folder that a word names: `@last`, `@TAG`, the name of a run in the folder `runs`, or a path.

    A path need not exist.

    Raises:
        UserError: There is no such tag, or no run at all.
    """
    if not isinstance(word, str | os.PathLike):
        raise UserError(f"a run is named by a text or a path, not by a {type(word).__name__}.")
    name = str(word)
    if not name.startswith("@"):
        is_name = "\0" not in name and not Path(word).exists() and (RUNS / name / "run.json").is_file()
        return RUNS / name if is_name else Path(word)
    if name[1:] == LAST:
        newest = newest_run()
        if newest is None:
            raise UserError(f"@last is the newest run in {RUNS.absolute()}, and there is none; name a run folder.")
        return newest
    known = tags()
    if name[1:] not in known:
        hint = did_you_mean(name[1:], [LAST, *known], " ({})")
        others = f" There are {few([f'@{tag}' for tag in known], 5)}." if known and not hint else ""
        raise UserError(f"there is no tag {name}{hint}; `ganherd runs tag RUN {name[1:]}` makes it.{others}")
    return known[name[1:]]


def tags() -> dict[str, Path]:
    """Return the run folder of each tag; empty if there are none. Invalid entries of tags.json are left out."""
    try:
        content = files.read_json(RUNS / "tags.json", _MOST_BYTES)
    except (OSError, ValueError):
        return {}
    pairs = content.items() if isinstance(content, dict) else ()
    return {
        name: RUNS / path for name, path in pairs if _TAG.fullmatch(name) and isinstance(path, str) and "\0" not in path
    }


def tag(run: Path, name: str) -> None:
    """Give a run a tag. If another run has this tag, it is taken from it."""
    if not _TAG.fullmatch(name) or name == LAST:
        why = "is taken: it is the newest run" if name == LAST else "is no tag"
        raise UserError(
            f"{name!r} {why}. A tag begins with a letter and has letters, digits and - _ . only, e.g. best."
        )
    path = RunFolder.open(run).path.resolve()
    home = RUNS.resolve()
    known = {
        one: str(where.relative_to(RUNS)) if where.is_relative_to(RUNS) else str(where) for one, where in tags().items()
    }
    known[name] = str(path.relative_to(home)) if path.is_relative_to(home) else str(path)
    RUNS.mkdir(exist_ok=True)
    files.atomic_write(RUNS / "tags.json", json.dumps(known, indent=1) + "\n")
