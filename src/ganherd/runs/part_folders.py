"""The folders of a run that several jobs fill, a range of members each: RUN/parts/000-009."""

from __future__ import annotations

import re
from pathlib import Path

from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError

_NAME = re.compile(r"(\d{3,})-(\d{3,})")


def part_name(part: range) -> str:
    return f"{part.start:03d}-{part.stop - 1:03d}"


def part_path(whole: RunFolder, part: range) -> Path:
    return whole.path / "parts" / part_name(part)


def parts(whole: RunFolder) -> list[range]:
    """Return the parts that were begun, in order."""
    names = (_NAME.fullmatch(path.name) for path in (whole.path / "parts").glob("*"))
    return sorted((range(int(match[1]), int(match[2]) + 1) for match in names if match), key=lambda part: part.start)


def unfinished(whole: RunFolder) -> list[str]:
    """Return in words what is left to do before all members are trained."""
    left, at = [], 0
    for part in parts(whole):
        if part.start > at:
            left.append(f"{at}-{part.start - 1} not begun")
        own = RunFolder(part_path(whole, part))
        if not own.info_path.exists() or own.info.state != "finished":  # without it: killed as it began
            left.append(f"{part.start}-{part.stop - 1} not finished")
        at = part.stop
    members = whole.info.members
    if members is None:
        raise UserError(f"{whole.info_path} does not say how many members the run has.")
    return left + ([f"{at}-{members - 1} not begun"] if at < members else [])
