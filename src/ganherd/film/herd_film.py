"""Write a film of given length about a run, from its events and sprites (small samples of all members at some step)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from ganherd.film import film_file
from ganherd.film.exchanges import Exchange, exchanges_at
from ganherd.film.frame_layout import lay_out
from ganherd.film.frames import Arrow, FrameContent, FramePainter, Sheet, member_colour
from ganherd.runs.folder import RunFolder
from ganherd.runs.run_list import RunSummary, summarise
from ganherd.runs.series import sprite_files
from ganherd.runs.series.metric_columns import MetricColumns
from ganherd.runs.series.record_file import RecordFile
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.training.health.look_labels import LOOK_LABELS
from ganherd.util import files
from ganherd.util.errors import UserError, counted
from ganherd.viz.sheets import Heading

_FEWEST, _MOST = 6, 25  # frames per second
_SWAP = "#6b7484"  # colour of the arrows of a swap


@dataclass(frozen=True)
class FilmRecord:
    """Facts about a film that was written."""

    path: Path
    num_bytes: int
    seconds: float
    frames: int
    steps: int  # saved steps that the film shows
    last_step: int
    is_finished: bool  # whether the run was finished


@dataclass(frozen=True)
class Moment:
    """The time that a frame of the film shows: a saved step, or a time between it and the next saved step."""

    number: int  # index of the saved step
    part: float = 0.0  # share of the time to the next saved step, from 0 up to less than 1


def most_steps(seconds: float) -> int:
    """Return how many saved steps a film of this length can show at its highest frame rate."""
    return max(2, int((seconds - _pause(seconds)) * _MOST) + 1)


def plan_moments(steps: int, seconds: float) -> tuple[list[Moment], list[int]]:
    """Return the moment of each frame of a film, and the milliseconds for which each frame is shown.

    Frames between saved steps are added if there are fewer than 6 per second. The last frame is shown longer.

    Args:
        steps: The number of saved steps, at least 2.
        seconds: The length of the film.

    >>> moments, milliseconds = plan_moments(3, 2.0)
    >>> len(moments), moments[1], sum(milliseconds), milliseconds[-1]
    (11, Moment(number=0, part=0.2), 2000, 400)
    """
    moving = seconds - _pause(seconds)
    between = max(1, math.ceil(moving * _FEWEST / (steps - 1)))
    moments = [Moment(number, i / between) for number in range(steps - 1) for i in range(between)]
    moments.append(Moment(steps - 1))
    ends = [round(100 * moving * i / (len(moments) - 1)) for i in range(len(moments))]
    return moments, [*(10 * (after - before) for before, after in pairwise(ends)), 10 * round(100 * _pause(seconds))]


def _pause(seconds: float) -> float:
    """Return the seconds for which the last frame is shown."""
    return min(2.5, seconds / 5)


def write_film(
    run: Path,
    output: Path,
    seconds: float = 20.0,
    width: int = 720,
    replica: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> FilmRecord:
    """Write a film of a run, and return facts about it.

    Args:
        run: The run folder.
        output: The file; its suffix is the format.
        seconds: The length of the film.
        width: The width in pixels.
        replica: The replica (copy of the herd with another seed) to show.
        watch: Called with the number of frames that are done and the total number.

    Raises:
        UserError: The run has no sprites, damaged ones, or only those of one step; or the file cannot be written.
    """
    film_file.check_output(output)
    folder = RunFolder.open(run)
    summary = summarise(run, folder.title, time.time(), sizes=False)
    film = HerdFilm(folder, summary, width, replica)
    film.thin(most_steps(seconds))
    some = film.some_frames()
    if output.suffix.lower() == ".gif":
        film.thin(film_file.most_gif_frames(some))
    moments, milliseconds = plan_moments(len(film.steps), seconds)

    def frames() -> Iterator[Image.Image]:
        for done, moment in enumerate(moments):
            watch(done, len(moments))
            yield film.frame(moment)
        watch(len(moments), len(moments))

    film_file.write_film(output, frames(), milliseconds, some)
    return FilmRecord(
        output,
        output.stat().st_size,
        sum(milliseconds) / 1000,
        len(moments),
        len(film.steps),
        film.steps[-1],
        summary.state == "finished",
    )


class HerdFilm:
    """Read and draw the frames of a film about one replica of a run."""

    def __init__(self, folder: RunFolder, summary: RunSummary, width: int, replica: int = 0) -> None:
        index = sprite_files.read_index(folder.sprites)
        if index is None:
            if folder.sprites.is_dir() and any(folder.sprites.iterdir()):
                raise _damaged(folder)
            raise UserError(
                f"{folder.path} has no sprites, the small samples of which films are made: a run saves them while it trains, "
                "unless run.sprites is 0."
            )
        if not 0 <= replica < index.replicas:
            raise UserError(f"there is no replica {replica}; this run has {index.replicas}, counted from 0.")
        each = index.members // index.replicas
        self._members = range(replica * each, (replica + 1) * each)
        self._index, self._summary, self._folder, self._title = index, summary, folder, folder.title
        sheets = sprite_files.saved_sheets(folder.sprites)
        self._sheets = {step: path for step, path in sheets.items() if self._fits(path)}
        self.steps = list(self._sheets)
        if len(self.steps) < 2:
            if len(sheets) >= 2:
                raise _damaged(folder)
            saved = f"only those of step {self.steps[0]:,}" if self.steps else "none"
            raise UserError(
                f"a film needs samples of two steps, and {folder.path} has saved {saved}: let it train longer."
            )
        recipe = folder.recipe
        self._torus, self._is_gap = recipe.torus, recipe.strategy.name == "gap"
        layout = lay_out(each, width, self._torus, recipe.strategy.settings.group_size if self._torus else 1)
        self._painter = FramePainter(index, layout, self._members)
        self._shown = len(layout.places)
        self._exchanges = self._read_exchanges()
        self._metrics = MetricColumns(RecordFile(folder.metrics_path))
        self._drawn: tuple[int, Image.Image] | None = None  # index of the last drawn step; its frame without time bar
        self._last_sheet: Sheet | None = None

    def thin(self, most: int) -> None:
        """Show at most this many saved steps, evenly spread, the first and the last included."""
        if len(self.steps) > most:
            self.steps = [self.steps[round(i * (len(self.steps) - 1) / (most - 1))] for i in range(most)]
            self._exchanges = self._read_exchanges()
            self._drawn = None

    def some_frames(self) -> list[Image.Image]:
        """Return four frames from the beginning to the end of the film."""
        return [self.frame(Moment(round(part * (len(self.steps) - 1)))) for part in (0, 0.3, 0.7, 1)]

    def frame(self, moment: Moment) -> Image.Image:
        """Draw the frame of a moment. Between two saved steps it shows the samples of the earlier one."""
        number, part = moment.number, moment.part
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = number, self._painter.draw_herd(self._content(number))
        exchange, step = self._exchanges[number], float(self.steps[number])
        if part:
            exchange = self._exchanges[number + 1]
            step += part * (self.steps[number + 1] - step)
        return self._painter.draw_time(
            self._drawn[1], step / max(1, self.steps[-1]), self._arrows(exchange), part or None
        )

    def _content(self, number: int) -> FrameContent:
        """Return what the frames of a saved step show; `number` is the index of the step."""
        exchange, shown = self._exchanges[number], self._members[: self._shown]
        return FrameContent(
            heading=Heading(self._title, self._facts(number)),
            sheet=self._sheet(number),
            captions=[self._caption(member, exchange) for member in shown],
            colours=[self._colour(member, exchange) for member in shown],
        )

    def _fits(self, path: Path) -> bool:
        """Return whether a sprite sheet is valid.

        A running training may remove it; a stranger's may contain anything.
        """
        try:
            sprite_files.check_sheet(files.read(path, sprite_files.MOST_SHEET), self._index)
        except (OSError, ValueError):
            return False
        return path.suffix == (".webp" if self._index.kind == "images" else ".json")

    def _sheet(self, number: int) -> Sheet:
        """Return the sheet of a saved step; if that was removed in the meantime, the sheet that was read last."""
        try:
            self._last_sheet = read_sheet(
                files.read(self._sheets[self.steps[number]], sprite_files.MOST_SHEET), self._index
            )
        except (OSError, ValueError):  # a running training removes sheets
            if self._last_sheet is None:
                raise _damaged(self._folder) from None
        return self._last_sheet

    def _read_exchanges(self) -> list[Exchange]:
        """Return what members have exchanged up to each saved step, from the events of the run."""
        lines = (line.parse() for line in RecordFile(self._folder.events_path).lines_from(0))
        events = (line for line in lines if line is not None) if self._torus is not None or self._is_gap else ()
        return list(exchanges_at(self.steps, events, self._index.members))

    def _facts(self, number: int) -> list[str]:
        """Return two lines below the title: the members and the verdict; the step and its scores (variety, FID)."""
        step, each = self.steps[number], len(self._members)
        herd = [counted(each, "members") + (" that swap discriminators" if self._is_gap else "")]
        if self._torus is not None:
            herd = [f"{self._torus[0]} × {self._torus[1]} cells on a torus"]
        if self._shown < each:
            herd.append(f"{self._shown:,} of {each:,} shown")
        if self._index.replicas > 1:
            herd.append(f"replica {self._members.start // each + 1} of {self._index.replicas}")
        numbers = [f"step {step:,} of {self.steps[-1]:,}"]
        figures = ("spread", "differs")
        record = self._metrics.at(step, figures, list(self._members))["figures"]
        for name in figures:
            values = record.get(name)
            known = [value for value in values if value is not None] if isinstance(values, list) else []
            if known:
                numbers.append(f"{LOOK_LABELS[name].label} {LOOK_LABELS[name].value(median(known))}")
        if number == len(self.steps) - 1 and self._summary.state == "finished":
            if self._summary.fid is not None and math.isfinite(self._summary.fid):
                numbers.append(f"FID {self._summary.fid:.3g}")
            if self._summary.verdict:
                herd.append(f"verdict: {self._summary.verdict}")
        return ["  ·  ".join(line) for line in (herd, numbers)]

    def _caption(self, member: int, exchange: Exchange) -> str:
        """Return the name below a member's tile, and where its discriminator (GAP) or generator (grid) is from."""
        own = member - self._members.start
        if self._torus is not None:
            founder = exchange.founder[member] - self._members.start
            return f"cell {own}" + (f", from {founder}" if founder != own else "")
        label = self._index.labels[member] if member < len(self._index.labels) else None
        name = label if label is not None else f"member {own}"
        if self._is_gap:
            return f"{name}, D {exchange.partner[member] - self._members.start}"
        return name

    def _colour(self, member: int, exchange: Exchange) -> str | None:
        """Return the colour of the member from which the generator (grid) or discriminator (GAP) is; None otherwise."""
        if self._torus is not None:
            return member_colour(exchange.founder[member] - self._members.start)
        return member_colour(exchange.partner[member] - self._members.start) if self._is_gap else None

    def _arrows(self, exchange: Exchange) -> list[Arrow]:
        """Return an arrow for each exchange between members whose tiles are shown."""
        first, shown = self._members.start, range(self._shown)
        if self._is_gap:
            pairs = ((a - first, b - first) for a, b in exchange.pairs)
            return [Arrow(a, b, _SWAP, is_mutual=True) for a, b in pairs if a in shown and b in shown]
        moves = dict.fromkeys((start - first, end - first) for start, end in exchange.moves)
        return [
            Arrow(start, end, member_colour(exchange.founder[end + first] - first))
            for start, end in moves
            if start in shown and end in shown
        ]


def _damaged(folder: RunFolder) -> UserError:
    return UserError(f"the sprites of {folder.path} are damaged: copy the run again, or train it again.")


def read_sheet(content: bytes, index: SpriteIndex) -> Sheet:
    """Decode a sprite sheet: a picture, or points [N, samples, 2] with NaN for those that are not finite.

    Args:
        content: The content of the file.
        index: The layout of the run's sheets.

    Raises:
        ValueError: The content is damaged.
    """
    if index.kind == "images":
        try:
            return sprite_files.open_images(content, index).convert("RGB")
        except OSError as error:
            raise ValueError("its pixels are damaged") from error
    points = np.full((index.members, index.samples, 2), np.nan)
    for member, row in enumerate(sprite_files.parse_points(content, index)):
        for number, point in enumerate(row[: index.samples]):
            if point is not None:
                points[member, number] = point
    return points
