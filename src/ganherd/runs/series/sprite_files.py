"""The sprites of a run: small pictures of all members at evenly thinned steps, in `RUN/sprites`.

`index.json` describes them. A sheet of images is a WebP file in which each member has a cell with a few samples; points of 2-D
data are JSON. Which steps are saved depends on the step alone: when there are too many, every second one is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ganherd.runs.models import Members, Record, Text
from ganherd.util import files

MOST_BYTES = 200 << 20  # of all sheets of a run
MOST_SHEET = 16 << 20  # bytes of a sheet that is read
_INDEX = "index.json"
_SHEET = re.compile(r"step-([0-9]{8,15})\.(webp|json)")
Size = Annotated[int, Field(ge=1, le=1 << 14)]


class SpriteIndex(Record):
    """What the sheets of a run show, and where in a sheet each member is."""

    kind: Literal["images", "points"]
    names: Annotated[list[Text], Field(min_length=1)]  # of all members, those of the first replica first
    labels: list[Text | None]  # the class that each member generates; None: no single one
    replicas: Members = 1
    samples: Size  # of each member
    columns: Size = 1  # members in a row of a sheet
    tile: Annotated[list[Size], Field(min_length=2, max_length=2)] = [1, 1]  # height and width of a sample in pixels
    low: list[float] = []  # the limits of points
    high: list[float] = []
    projected: bool = False  # points are rows in the plane where the data varies most

    @property
    def members(self) -> int:
        """Return the number of members in all replicas."""
        return len(self.names)


def interval(step: int, every: int, most: int) -> int:
    """Return the steps between two saved sheets when a run is at `step`: `every`, doubled until at most `most` are saved.

    One place is left for the last step of the run, which may lie between two others.

    >>> [interval(step, 50, 5) for step in (0, 150, 200, 350, 400)]
    [50, 50, 100, 100, 200]
    """
    while step // every + 2 > max(most, 2):
        every *= 2
    return every


def is_saved_at(step: int, every: int, most: int) -> bool:
    """Return whether a sheet is saved at a step.

    >>> [step for step in range(0, 501, 50) if is_saved_at(step, 50, 5)]
    [0, 50, 100, 150, 200, 300, 400]
    """
    return step % interval(step, every, most) == 0


def write_index(folder: Path, index: SpriteIndex) -> None:
    """Write the index of a run's sheets."""
    folder.mkdir(exist_ok=True)
    files.atomic_write(folder / _INDEX, json.dumps(index.as_json()) + "\n", sync=False)


def read_index(folder: Path) -> SpriteIndex | None:
    """Return the index of a run's sheets; None if there is none, or if it is damaged."""
    try:
        return SpriteIndex.parse(files.read_json(folder / _INDEX, MOST_SHEET))
    except (OSError, ValueError):
        return None


def sheet_path(folder: Path, step: int, kind: str) -> Path:
    """Return the file of the sheet of a step."""
    return folder / f"step-{step:08d}.{'webp' if kind == 'images' else 'json'}"


def saved_sheets(folder: Path) -> dict[int, Path]:
    """Return the file of each saved step, oldest first."""
    if not folder.is_dir():
        return {}
    named = ((_SHEET.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def keep_only(folder: Path, steps: Iterable[int]) -> None:
    """Remove the sheets of all other steps."""
    retained = set(steps)
    for step, path in saved_sheets(folder).items():
        if step not in retained:
            path.unlink(missing_ok=True)
