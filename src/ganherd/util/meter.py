"""Show the progress of long work, with its rate and the time left: as a bar on a terminal, or as lines in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from ganherd.util.text import duration, say

T = TypeVar("T")
Progress = Callable[[str], None]  # is called with a line for the user
SECONDS_BETWEEN_LINES = 5.0
_MARKS, _SPACING = 400, 0.05  # the rate is that of the last 400 marks, which are at least 0.05 s apart


class Detail(str):
    """A progress line about a single run.

    Commands that do several runs (comparisons) show it within their own progress line instead of printing it.
    """


class RateMeter:
    """Measure the rate of work, estimate the time left, and decide when the next line of a log is due.

    The rate is that of the last 400 calls of `at`. Work that was done before the first call does not count for it.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MARKS)  # (done, time)
        self._last_line = float("-inf")

    def at(self, done: int) -> None:
        """Record that `done` units of work are done now. Cheap enough to be called after every step."""
        now = time.monotonic()
        if len(self._marks) > 1 and now - self._marks[-2][1] < _SPACING:
            self._marks.pop()
        self._marks.append((done, now))

    @property
    def rate(self) -> float:
        """Return the units of work per second over the last calls of `at`; 0 if there are too few."""
        if len(self._marks) < 2:
            return 0.0
        (first, then), (last, now) = self._marks[0], self._marks[-1]
        return (last - first) / (now - then) if now > then else 0.0

    def seconds_left(self, total: int) -> float:
        """Estimate the seconds until all `total` units of work are done. `rate` must not be 0."""
        return max(0, total - self._marks[-1][0]) / self.rate

    def line_is_due(self, seconds: float = SECONDS_BETWEEN_LINES, at_once: bool = False) -> bool:
        """Return whether the next line is due: `seconds` have passed since this was last True, or `at_once` is set."""
        now = time.monotonic()
        if not at_once and now - self._last_line < seconds:
            return False
        self._last_line = now
        return True


class TimeLeft:
    """Report how much of some work is done and the time left, at most every few seconds.

    Args:
        progress: Receives each line; None: report nothing.
        what: The work in words, with which each line begins.
        total: The number of units of work.
        seconds: The least number of seconds between two lines.

    >>> lines = []
    >>> TimeLeft(lines.append, "features", 100, seconds=0).at(50)
    >>> lines
    ['features: 50 of 100, 0 s left']
    """

    def __init__(
        self, progress: Progress | None, what: str, total: int, seconds: float = SECONDS_BETWEEN_LINES
    ) -> None:
        self._progress, self._what, self._total, self._seconds = progress, what, total, seconds
        self._meter = RateMeter()
        self._meter.at(0)
        self._meter.line_is_due()  # so that the first line is not due at once, but after some seconds

    def at(self, done: int) -> None:
        """Report that `done` of the total are done, if a line is due."""
        if self._progress is None or not 0 < done < self._total:
            return
        self._meter.at(done)
        if self._meter.rate and self._meter.line_is_due(self._seconds):
            left = duration(self._meter.seconds_left(self._total))
            self._progress(Detail(f"{self._what}: {done:,} of {self._total:,}, {left} left"))


def timed(items: Sequence[T], progress: Progress | None, what: str) -> Iterator[T]:
    """Yield the items, and report to `progress` how many are done and the time left, every few seconds.

    Args:
        what: The work in words, with which each line begins.
    """
    clock = TimeLeft(progress, what, len(items))
    for done, item in enumerate(items):
        clock.at(done)
        yield item


class ProgressBar:
    """Show the rate and the time left on stderr: as a bar on a terminal, otherwise as a line every few seconds."""

    def __init__(self, what: str, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._what, self._quiet = what, quiet
        console = Console(stderr=True)
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Bar(*columns, console=console, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._meter = RateMeter()
        self._meter.line_is_due()

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def at(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        self._meter.at(done)
        about = self._what
        if self._meter.rate:
            about += f"  {self._meter.rate:,.0f}/s  {duration(self._meter.seconds_left(total))} left"
        self._bar.update(self._task, completed=done, total=total, description=about)
        if self._bar.disable and not self._quiet and self._meter.line_is_due():
            say(f"{done:,}/{total:,} {about}")
