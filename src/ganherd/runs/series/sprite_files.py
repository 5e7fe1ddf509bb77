"""The sprites of a run: a few small samples of every member at evenly spaced steps, in `RUN/sprites`.

There is one file, called a sheet, for each step, and `index.json` describes them. A sheet of images is a WebP file in
which each member has a cell with a few samples; a sheet of points of 2-D data is a JSON file. When there are too many
sheets, every second one is removed; which steps remain depends only on the step that the run has reached.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from pydantic import Field

from ganherd.runs.models import Members, Record, Text
from ganherd.util import files

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 200 << 20  # bytes of all sheets of a run, at most
MOST_SHEET = 16 << 20  # a larger sheet (in bytes) is not read
_MOST_PIXELS = 1 << 26  # a sheet with more pixels is not read; no run writes as many
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
    low: list[float] = []  # smallest coordinates of the data, as limits of a plot of points
    high: list[float] = []  # largest coordinates
    projected: bool = False  # whether points are rows of the data projected to the plane in which the data varies most

    @property
    def members(self) -> int:
        """Return the number of members in all replicas."""
        return len(self.names)

    @property
    def side(self) -> int:
        """Return the number of samples in a row of a member's cell."""
        return math.isqrt(self.samples)

    @property
    def sheet_size(self) -> tuple[int, int]:
        """Return the width and height of a sheet of images in pixels."""
        height, width = self.tile
        return self.columns * self.side * width, -(-self.members // self.columns) * self.side * height


def interval(step: int, every: int, most: int) -> int:
    """Return the number of steps between two saved sheets when a run is at `step`.

    This is `every`, doubled until at most `most` sheets are saved. One of them is reserved for the last step of the
    run, which may lie between two others.

    >>> [interval(step, 50, 5) for step in (0, 150, 200, 350, 400)]
    [50, 50, 100, 100, 200]
    """
    while step // every + 2 > max(most, 2):
        every *= 2
    return every


def is_saved_at(step: int, every: int, most: int) -> bool:
    """Return whether a sheet is saved at a step; see `interval`.

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
    """Return the path of the sheet of a step. `kind`: "images" or "points"."""
    return folder / f"step-{step:08d}.{'webp' if kind == 'images' else 'json'}"


def saved_sheets(folder: Path) -> dict[int, Path]:
    """Return the path of each saved sheet by its step, lowest step first."""
    if not folder.is_dir():
        return {}
    named = ((_SHEET.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def parse_points(content: bytes, index: SpriteIndex) -> list[list[list[float] | None]]:
    """Return the points of each member in a sheet; a point that was not finite is None.

    Raises:
        ValueError: The sheet is not what ganherd writes.
    """
    try:
        rows = json.loads(content, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(rows, list) or len(rows) != index.members:
        raise ValueError(f"it does not hold the points of {index.members} members")
    for row in rows:
        if not isinstance(row, list) or not all(point is None or _is_point(point) for point in row):
            raise ValueError("a member has something other than points")
    return rows


def _refuse_constant(name: str) -> NoReturn:
    """Raise a ValueError for NaN and infinity, which `json.loads` would accept."""
    raise ValueError(f"{name} is no number")


def _is_point(point: Any) -> bool:
    """Return whether a value is a list of two finite numbers."""
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(type(value) in (int, float) and abs(value) < 1e300 for value in point)
    )


def open_images(content: bytes, index: SpriteIndex) -> Image:
    """Return a sheet of images as a PIL image.

    Only its header is read now; PIL decodes the pixels when they are needed.

    Raises:
        ValueError: It is not a WebP file, or its size is not that of the index.
    """
    from PIL import Image, UnidentifiedImageError

    width, height = index.sheet_size
    if width * height > _MOST_PIXELS:
        raise ValueError(f"a sheet of {width} × {height} pixels is too large")
    try:
        sheet = Image.open(io.BytesIO(content), formats=("WEBP",))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError("it is no WebP file") from error
    if sheet.size != (width, height):
        raise ValueError(f"it has {sheet.width} × {sheet.height} pixels instead of {width} × {height}")
    return sheet


def check_sheet(content: bytes, index: SpriteIndex) -> None:
    """Raise a ValueError if a sheet does not fit the index. Images are not decoded."""
    if index.kind == "images":
        open_images(content, index)
    else:
        parse_points(content, index)


def keep_only(folder: Path, steps: Iterable[int]) -> None:
    """Remove all sheets except those of these steps."""
    retained = set(steps)
    for step, path in saved_sheets(folder).items():
        if step not in retained:
            path.unlink(missing_ok=True)
