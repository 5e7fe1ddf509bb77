"""Show the progress of a training: a live display on a terminal, plain lines in a log, nothing if quiet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from ganherd.util import text as printed
from ganherd.util.errors import few
from ganherd.util.meter import RateMeter
from ganherd.util.text import duration, words

_ROWS = 12  # members shown in the display


class Progress:
    """Show rate, time left, losses and alarms on stderr, so that programs can read stdout."""

    def __init__(self, names: list[str], quiet: bool = False) -> None:
        self._names, self._quiet = [printed.printable(name) for name in names], quiet
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._meter = RateMeter()
        self._alarms: dict[int, list[str]] = {}  # active alarms by member
        self._line: Mapping[str, Any] = {}
        self._step, self._steps = 0, 1
        self._seconds = 0.0  # that it has trained
        self._deadline: float | None = None  # seconds that it may train; None: only the steps count
        self._members = float(len(names))  # members that make a step with each step of the run

    # -- start and end --------------------------------------------------------------------------------------------

    def start(self, steps: int, deadline: float | None = None) -> None:
        """Start the display of a training of `steps` steps, or of `deadline` seconds, in which it makes about that many."""
        self._steps, self._deadline = steps, deadline
        if not self._quiet and self._console.is_terminal:
            self._live = Live(self._view(), console=self._console, refresh_per_second=4, get_renderable=self._view)
            self._live.start()

    def end_at(self, step: int) -> None:
        """Show `step` as the last one: the time is used up."""
        self._step, self._steps, self._deadline = step, step, None

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    # -- called by the training loop ------------------------------------------------------------------------------

    def at(self, step: int, seconds: float, members: float) -> None:
        """Note the step that was made, and the seconds of training so far.

        Args:
            members: Number of members that make a step with each step of the run.
        """
        self._step, self._seconds, self._members = step, seconds, members
        self._meter.at(step)

    def record(self, line: Mapping[str, Any]) -> None:
        """Show the losses of a record; in a log, print a line if one is due."""
        self._line = line
        step = line["step"]
        if (
            not self._quiet
            and not self._live
            and self._meter.line_is_due(at_once=self._deadline is None and step >= self._steps)
        ):
            losses = "  ".join(f"{k} {_mean(line[k]):.3f}" for k in ("loss_g", "loss_d") if line.get(k))
            self.say(f"step {self._place(step)}  {self._about(step)}  {losses}")

    def alarm(self, member: int, what: str) -> None:
        self._alarms.setdefault(member, []).append(words(what))

    def say_alarms(self, step: int, begun: list[tuple[int, str]]) -> None:
        """Print one line for each kind of alarm, with some of its members."""
        for what in sorted({kind for _, kind in begun}):
            names = [self._names[member] for member, kind in begun if kind == what and member < len(self._names)]
            self.say(f"step {step:,}: {words(what)}: {few(names, 3)}")

    def calm(self, member: int, what: str) -> None:
        """End an alarm of a member."""
        left = [alarm for alarm in self._alarms.pop(member, []) if alarm != words(what)]
        if left:
            self._alarms[member] = left

    def repaired(self, member: int) -> None:
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

    # -- display --------------------------------------------------------------------------------------------------

    def _about(self, step: int) -> str:
        """Return how much is done, the rate and the time left. Called by the thread of the display, too."""
        if not (rate := self.rate):
            return "…"
        left = (self._steps - step) / rate if self._deadline is None else self._deadline - self._seconds
        share = f"{100 * self._share(step):.0f}%"
        return f"{share}  {rate * self._members:,.0f} member-steps/s  {duration(max(0.0, left))} left"

    def _share(self, step: int) -> float:
        """Return how much is done: of the steps, or of the time."""
        return min(1.0, step / self._steps if self._deadline is None else self._seconds / max(self._deadline, 1e-9))

    def _place(self, step: int) -> str:
        """Return the step and the last one, which only the clock knows if there is a deadline."""
        return f"{step:,}" if self._deadline is not None else f"{step:,}/{self._steps:,}"

    def _view(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in ("member", "loss G", "loss D", ""):
            table.add_column(title, justify="left" if title in ("member", "") else "right")
        shown = sorted(self._alarms)[:_ROWS] + [m for m in range(len(self._names)) if m not in self._alarms]
        for member in sorted(shown[:_ROWS]):
            losses = [f"{self._line[key][member]:.3f}" if self._line.get(key) else "" for key in ("loss_g", "loss_d")]
            alarms = ", ".join(self._alarms.get(member, []))
            table.add_row(escape(self._names[member]), *losses, f"[red]{alarms}[/red]")
        more = len(self._names) - _ROWS
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(1.0, self._share(self._step), width=30)
        line.add_row(f"[bold]step {self._place(self._step)}", bar, self._about(self._step))
        return Group(table, *([f"[dim]… and {more} more members[/dim]"] if more > 0 else []), line)


def _mean(values: list[float]) -> float:
    """Return the mean over the members that are trained; others have no loss.

    >>> _mean([1.0, math.nan, 3.0])
    2.0
    """
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
