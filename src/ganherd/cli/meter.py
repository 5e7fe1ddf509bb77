"""How far a command is: a bar with rate and time left on a terminal, a line now and then in a log, nothing when quiet."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ganherd.cli.options import say
from ganherd.util.progress import duration

SECONDS_BETWEEN_LINES = 5.0


class Meter:
    """Told how many are done, of how many. What was done before the first word counts neither for rate nor for time."""

    def __init__(self, what: str, quiet: bool = False) -> None:
        self._what, self._quiet = what, quiet
        console = Console(stderr=True)
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._began: tuple[int, float] | None = None  # (done, time)
        self._said = 0.0

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def at(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began, self._said = (done, now), now
        about = self._about(done, total, now)
        self._bar.update(self._task, completed=done, total=total, description=about)
        if self._bar.disable and not self._quiet and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            say(f"{done:,}/{total:,} {about}")

    def _about(self, done: int, total: int, now: float) -> str:
        assert self._began is not None
        more, seconds = done - self._began[0], now - self._began[1]
        if not more or seconds <= 0:
            return self._what
        return f"{self._what}  {more / seconds:,.0f}/s  {duration((total - done) * seconds / more)} left"
