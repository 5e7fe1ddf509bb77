"""The section that shows how samples formed: a filmstrip of a few steps, and the place of the herd with its slider."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image

from ganherd.report.gather import RunStory
from ganherd.report.templating import number, render
from ganherd.runs.folder import RunFolder
from ganherd.runs.series import sprite_files
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.scoring import gallery
from ganherd.util import files
from ganherd.viz import pictures

MOST_FRAMES = 8
_MOST_SHOWN = 16  # members of a frame
_SIDE = 40  # pixels of a sample, at least
_MOST_POINTS = 60  # of each member
_MOST_PIXELS = 1 << 26  # of a sheet


@dataclass(frozen=True)
class Frame:
    """The samples of one step, as a PNG or as points."""

    step: int
    png: bytes | None = None
    svg: Markup | None = None


def film(story: RunStory) -> Markup:
    """Return the filmstrip and the place of the herd; empty if no pictures were saved while the run trained."""
    frames = story.attempt("the sprites", lambda: frames_of(RunFolder(story.path)))
    if not frames:
        return Markup()
    total = sum(member.replica == 0 for member in story.members) or 1
    whose = "each member" if total <= _MOST_SHOWN else f"{_MOST_SHOWN} of {number(total)} members"
    replica = " of the first replica" if story.replicas > 1 else ""
    about = f"Samples of {whose}{replica}, from the same noise at every step."
    if story.embedded and story.embedded["sheets"]:
        about += " Below, the slider moves all members through the run, and the pointer shows the numbers of a member."
    return render("film", frames=frames, caption=about)


def frames_of(run: RunFolder) -> list[Frame]:
    """Return a few frames of a run, from its sprites or, if it has none, from the pictures that were drawn while it trained."""
    index, sheets = sprite_files.read_index(run.sprites), sprite_files.saved_sheets(run.sprites)
    if index is None or not sheets:
        drawn = {
            int(path.stem[5:]): path for path in sorted(run.samples.glob("step-*.png")) if path.stem[5:].isdecimal()
        }
        return [Frame(step, files.read(drawn[step], gallery.LARGEST)) for step in early_first(list(drawn))]
    return [_frame(step, sheets[step], index) for step in early_first(list(sheets))]


def early_first(steps: list[int], most: int = MOST_FRAMES) -> list[int]:
    """Return a few of the steps, with the first and the last: early ones lie closer together, because most happens then.

    >>> early_first(list(range(0, 1050, 50)), 6)
    [0, 50, 100, 200, 450, 1000]
    """
    if len(steps) <= most:
        return steps
    places = np.geomspace(1, len(steps), most).round().astype(int) - 1
    for i in range(1, most):  # no place twice
        places[i] = max(places[i], places[i - 1] + 1)
    return [steps[place] for place in places]


def _frame(step: int, path: Path, index: SpriteIndex) -> Frame:
    content = files.read(path, sprite_files.MOST_SHEET)
    each = max(1, index.members // index.replicas)
    members = np.linspace(0, each - 1, min(each, _MOST_SHOWN)).round().astype(int).tolist()
    if index.kind == "points":
        return Frame(step, svg=_scatter(json.loads(content), members, index))
    tall, wide = index.tile
    scale = max(1, math.ceil(_SIDE / max(tall, wide)))
    columns = _columns(len(members))
    rows = math.ceil(len(members) / columns)
    gap, side = 2, round(math.sqrt(index.samples))
    picture = Image.new("RGBA", (columns * (wide * scale + gap) - gap, rows * (tall * scale + gap) - gap))
    with Image.open(io.BytesIO(content), formats=["WEBP"]) as sheet:
        if sheet.width * sheet.height > _MOST_PIXELS:
            raise ValueError(f"the sheet of step {step} is too large")
        for place, member in enumerate(members):
            left, top = member % index.columns * side * wide, member // index.columns * side * tall
            sample = sheet.crop((left, top, left + wide, top + tall)).convert("RGBA")
            sample = sample.resize((wide * scale, tall * scale), Image.Resampling.NEAREST)
            picture.paste(sample, (place % columns * (wide * scale + gap), place // columns * (tall * scale + gap)))
    return Frame(step, png=pictures.png(picture))


def _columns(members: int) -> int:
    """Return how many members are in a row: about as many as there are rows, with few empty places.

    >>> [_columns(members) for members in (1, 3, 4, 9, 10, 16)]
    [1, 3, 2, 3, 5, 4]
    """
    most = math.ceil(math.sqrt(members))
    return min(range(most, most + 2), key=lambda columns: -members % columns)


def _scatter(sheet: list[list[list[float] | None]], members: list[int], index: SpriteIndex) -> Markup:
    """Return the points of members as SVG."""
    low, high = np.array(index.low), np.array(index.high)
    middle, half = (low + high) / 2, float((high - low).max()) * 0.58 or 1.0
    known = [np.array(point, float) for member in members for point in sheet[member][:_MOST_POINTS] if point]
    at = [(50 + 50 * (x - middle[0]) / half, 50 - 50 * (y - middle[1]) / half) for x, y in known]
    dots = Markup("").join(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="1.1"/>').format(x, y) for x, y in at)
    return Markup('<svg viewBox="0 0 100 100" role="img" aria-label="points">{}</svg>').format(dots)
