"""Show the progress of a training: a live display on a terminal, plain lines in a log, nothing if quiet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ganherd.training.health.look_labels import LOOK_LABELS, explained
from ganherd.util import text as printed
from ganherd.util.errors import counted, few
from ganherd.util.meter import Detail, RateMeter
from ganherd.util.paths import from_here
from ganherd.util.text import duration, words

_ROWS = 12  # members shown in the display
_LOOKS = ("spread", "tells")  # the scores of a look (the health check of all members) that are shown
_LOSSES = {"loss_g": "generator loss", "loss_d": "discriminator loss"}  # shown instead if there are no looks
_LOW = 0.5  # a variety below this is shown in yellow; the alarm comes later
_CELL = 6  # columns of a cell of the board


class Progress:
    """Show rate, time left, variety, accuracy and alarms on stderr, so that programs can read stdout."""

    def __init__(self, names: list[str], quiet: bool = False, board: tuple[int, int, int] | None = None) -> None:
        """Create the display of members with these names.

        Args:
            quiet: Print nothing.
            board: Rows, columns and members per cell, if members are placed on a grid of cells. Members are numbered
                cell by cell.
        """
        self._names, self._quiet, self._board = [printed.printable(name) for name in names], quiet, board
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._meter = RateMeter()
        self._alarms: dict[int, list[str]] = {}  # active alarms by member
        self._numbers: dict[str, Sequence[float]] = {}  # for each member, the scores of the last look, or its losses
        self._picture: Path | None = None  # the newest picture of samples
        self._step, self._steps = 0, 1
        self._seconds = 0.0  # of training so far
        self._deadline: float | None = None  # seconds that the run may train; None: only the steps count
        self._members = float(len(names))  # steps of members in each step of the run

    # -- start and end --------------------------------------------------------------------------------------------

    def start(self, steps: int, deadline: float | None = None) -> None:
        """Start the display of a training of `steps` steps, or if there is a `deadline`, of that many seconds."""
        self._steps, self._deadline = steps, deadline
        if not self._quiet and self._console.is_terminal:
            self._live = Live(self._view(), console=self._console, refresh_per_second=4, get_renderable=self._view)
            self._live.start()

    def end_at(self, step: int) -> None:
        """Show `step` as the last one, even if more steps were planned."""
        self._step, self._steps, self._deadline = step, step, None

    def close(self) -> None:
        """End the live display, if there is one."""
        if self._live:
            self._live.stop()
            self._live = None

    # -- called by the training loop ------------------------------------------------------------------------------

    def at(self, step: int, seconds: float, members: float) -> None:
        """Note the step that was made, and the seconds of training so far.

        Args:
            members: Number of steps of members in each step of the run; slow members count less than 1.
        """
        self._step, self._seconds, self._members = step, seconds, members
        self._meter.at(step)

    def look(self, numbers: Mapping[str, Sequence[float]]) -> None:
        """Show the scores of a look at all members, if any is known. `numbers`: a value for each member, by name."""
        if any(math.isfinite(value) for key in _LOOKS for value in numbers.get(key) or ()):
            self._numbers = {key: numbers[key] for key in _LOOKS}

    def record(self, line: Mapping[str, Any]) -> None:
        """Show the numbers of a record; in a log, print a line if one is due."""
        self.look(line)
        if not any(key in self._numbers for key in _LOOKS):
            self._numbers = {key: line[key] for key in _LOSSES if line.get(key)}
        step = line["step"]
        is_last = self._deadline is None and step >= self._steps
        if not self._quiet and not self._live and self._meter.line_is_due(at_once=is_last):
            self.say(f"step {self._place(step)}  {self._about(step)}  {self._means()}  {self._how_many()}")

    def picture(self, path: Path) -> None:
        """Show the path of the newest picture of samples. In a log, only the first one of this process is announced."""
        if self._picture is None:
            is_later = any(earlier.name < path.name for earlier in path.parent.glob("step-*.png"))  # the run is resumed
            self.say(Detail(f"{'next' if is_later else 'first'} picture: {from_here(path)}"))
        self._picture = path

    def alarm(self, member: int, what: str) -> None:
        """Show that an alarm of a member began."""
        self._alarms.setdefault(member, []).append(words(what))

    def say_alarms(self, step: int, begun: list[tuple[int, str]]) -> None:
        """Print one line for each kind of alarm, with some of its members."""
        for what in sorted({kind for _, kind in begun}):
            names = [self._names[member] for member, kind in begun if kind == what and member < len(self._names)]
            self.say(f"step {step:,}: {words(what)}: {few(names, 3)}")

    def calm(self, member: int, what: str) -> None:
        """Show that an alarm of a member ended."""
        left = [alarm for alarm in self._alarms.pop(member, []) if alarm != words(what)]
        if left:
            self._alarms[member] = left

    def repaired(self, member: int) -> None:
        """Show that a member was repaired, in place of its alarms."""
        self._alarms[member] = ["repaired"]

    def say(self, text: str) -> None:
        """Print a line above the display, or into the log."""
        if self._quiet:
            return
        if self._live:
            self._live.console.print(printed.printable(text), highlight=False, markup=False)
        else:
            printed.say(text)

    @property
    def rate(self) -> float:
        """Steps per second over the last seconds."""
        return self._meter.rate

    # -- numbers --------------------------------------------------------------------------------------------------

    def _about(self, step: int) -> str:
        """Return a text: how much is done, the rate and the time left. The thread of the display calls this, too."""
        is_last = self._deadline is None and step >= self._steps
        if not (rate := self.rate):
            return "100%" if is_last else "starting…"
        speed = f"{100 * self._share(step):.0f}%  {self._speed(rate)}"
        return speed if is_last else f"{speed}  {duration(self._seconds_left(step, rate))} left"

    def _speed(self, rate: float) -> str:
        """Return the rate in member-steps per second as text. `rate`: steps of the run per second."""
        return f"{rate * self._members:,.0f} member-steps/s"

    def _seconds_left(self, step: int, rate: float) -> float:
        """Estimate the seconds of training that follow a step."""
        left = (self._steps - step) / rate if self._deadline is None else self._deadline - self._seconds
        return max(0.0, left)

    def _share(self, step: int) -> float:
        """Return how much of the steps, or of the time budget, is done, from 0 to 1."""
        return min(1.0, step / self._steps if self._deadline is None else self._seconds / max(self._deadline, 1e-9))

    def _place(self, step: int) -> str:
        """Return the step as text, with the last step if it is known, i.e. if there is no deadline."""
        return f"{step:,}" if self._deadline is not None else f"{step:,}/{self._steps:,}"

    def _means(self) -> str:
        """Return a text with the mean of each number over the members."""
        return "  ".join(f"{_label(key)} {_shown(key, _mean(values))}" for key, values in self._numbers.items())

    def _how_many(self) -> str:
        """Return a text with the number of members that have alarms."""
        return f"{counted(len(self._alarms), 'members')} with alarms" if self._alarms else "no alarms"

    # -- display --------------------------------------------------------------------------------------------------

    def _view(self) -> Group:
        """Return the whole display: the board or a table of members, explanations, and the line of progress."""
        parts: list[RenderableType] = []
        if self._has_board():
            parts += [Text("variety of each cell:", "dim"), self._cells(), Text(self._means())]
        else:
            more = len(self._names) - _ROWS
            parts += [self._table(), *([Text(f"… and {counted(more, 'more members')}", "dim")] if more > 0 else [])]
        looked = [key for key in _LOOKS if key in self._numbers or not self._numbers]
        parts += [Text(explained(key), "dim") for key in looked]
        if self._picture is not None:
            parts.append(Text(f"newest picture: {from_here(self._picture)}", "dim", overflow="fold"))
        parts.append(Text(self._how_many(), "red" if self._alarms else "green"))
        line = Table.grid(padding=(0, 1))
        colour = "yellow" if self._alarms else "cyan"  # the default, a red, would look like an alarm
        bar = ProgressBar(1.0, self._share(self._step), width=20, complete_style=colour, finished_style="green")
        line.add_row(
            Text(f"step {self._place(self._step)}", "bold"),
            bar,
            Text(self._about(self._step)),
        )
        return Group(*parts, line)

    def _table(self) -> Table:
        """Return a table with a row for each member. If there are too many, members with alarms are shown first."""
        keys = list(self._numbers) or list(_LOOKS)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("member", no_wrap=True)
        for key in keys:
            table.add_column(_label(key), justify="right")
        table.add_column("")
        shown = sorted(self._alarms)[:_ROWS] + [m for m in range(len(self._names)) if m not in self._alarms]
        for member in sorted(shown[:_ROWS]):
            values = [self._number(key, member) for key in keys]
            alarms = self._alarms.get(member, [])
            table.add_row(Text(self._names[member]), *values, Text(", ".join(alarms), "red" if alarms else ""))
        return table

    def _number(self, key: str, member: int) -> Text:
        """Return a number of a member as text, in yellow if it is a low variety of samples."""
        values = self._numbers.get(key)
        if values is None:
            return Text("…", "dim")
        return Text(_shown(key, values[member]), "yellow" if key == "spread" and values[member] < _LOW else "")

    def _has_board(self) -> bool:
        """Return whether to show members as a board: they are on a grid that fits, and no losses are shown."""
        if self._board is None or not self._numbers.keys() <= set(_LOOKS):
            return False
        return self._board[0] <= 2 * _ROWS and self._board[1] * _CELL <= self._console.width

    def _cells(self) -> Table:
        """Return the board: the least variety in each cell of the first replica, red if a member of it has an alarm."""
        assert self._board is not None
        rows, columns, each = self._board
        board = Table.grid(padding=(0, 1))
        for row in range(rows):
            cells = []
            for column in range(columns):
                first = (row * columns + column) * each
                cells.append(self._cell(range(first, first + each)))
            board.add_row(*cells)
        return board

    def _cell(self, members: range) -> Text:
        """Return a cell of the board: the least variety of these members, on a colour that shows their state."""
        values = self._numbers.get("spread")
        if values is None:
            return Text("  …  ", "dim")
        known = [values[m] for m in members if m < len(values) and math.isfinite(values[m])]
        least = min(known, default=math.nan)
        is_ill = any(member in self._alarms for member in members)
        style = "bold white on red" if is_ill else "black on yellow" if least < _LOW else "black on green"
        return Text(f"{_shown('spread', least):^{_CELL - 1}}", style)


def _label(key: str) -> str:
    """Return the name of a score or loss in the display."""
    return LOOK_LABELS[key].label if key in LOOK_LABELS else _LOSSES[key]


def _shown(key: str, value: float) -> str:
    """Return a score or loss as text; a dash if it is not finite."""
    if key in LOOK_LABELS:
        return LOOK_LABELS[key].value(value)
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN: members that are not trained have no loss. NaN if there are none.

    >>> _mean([1.0, math.nan, 3.0])
    2.0
    """
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
