"""Show the progress of a series of trainings and scorings as one line, with the time left of the whole series."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ganherd.training.recording.progress import Progress
from ganherd.util import text as printed
from ganherd.util.meter import Detail, RateMeter
from ganherd.util.terminal.standard_streams import safe_streams
from ganherd.util.text import duration, one_line

_BAR = 20  # columns of the bar, if there is room for one
_SHORTEST_NAME = 16  # names are cut to this many characters; if there is less room, the rate is left out
_SHORTEST_DETAIL = 8  # a text that would be cut to fewer characters is left out
_SCORES = " + scores"  # follows a time left that lacks the time for scores, because none was measured yet
_SECONDS_BETWEEN_LINES = 60.0  # between two lines in a log while one task runs; more if the series takes hours
_LINES = 20  # a log gets at most about this many such lines


@dataclass
class SeriesTask:
    """One task of a series: a training, or the scoring of a run."""

    kind: Literal["training", "scoring"]
    name: str
    path: Path | None = None  # the run folder; None: not known yet
    work: float = 1.0  # the amount of work, in a unit that all tasks of this kind share
    seconds: float | None = None  # duration; None: estimated from `work`
    is_limit: bool = False  # whether it takes at most these seconds
    group: str = ""  # tasks of one group take the same time per unit of work; empty: the group is `name`
    done: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Kind and group: tasks with the same key take the same time per unit of work."""
        return self.kind, self.group or self.name


class SeriesProgress:
    """Show which of all trainings is running, its step and rate, and the time left of the series.

    On a terminal this is one line, which is removed at the end. A log gets a line when a task starts, when a training
    ends, and now and then during a long task. A message of a training is printed with the training's name, and only
    once for each group of tasks.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._console = quiet, Console(stderr=True)
        self._is_live = not quiet and self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._open = ExitStack()
        self._lock = threading.RLock()  # the terminal's thread reads the tasks; never held while a line is printed
        self._tasks: list[SeriesTask] = []
        self._task: SeriesTask | None = None  # the task that is running
        self._progress: _TrainingOfSeries | None = None  # of the training that is running
        self._status = ""  # what the task does now
        self._printed: set[Hashable] = set()  # the keys of all lines that were printed
        self._measured: dict[tuple[str, str], tuple[float, float]] = {}  # (work, seconds) by key of the task
        self._meter = RateMeter()  # decides when the next line of a log is due
        self._began = self._task_began = time.monotonic()
        self._share = 0.0  # how much of the series is done, from 0 to 1

    def __enter__(self) -> SeriesProgress:
        if self._is_live:
            self._open.enter_context(safe_streams("stderr", "stdout"))  # a terminal may be closed meanwhile
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._view, transient=True)
            self._open.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()
        self._live = None

    # -- the tasks ------------------------------------------------------------------------------------------------

    def plan(self, tasks: Iterable[SeriesTask]) -> None:
        """Set all tasks of the series, in their order. Call this again when more is known about them."""
        with self._lock:
            self._tasks = list(tasks)

    @contextmanager
    def training(self, path: str | Path | None) -> Iterator[None]:
        """Show, while the block runs, that it trains the run in this folder. None: the folder is not known yet."""
        with self._doing("training", path) as task:
            try:
                yield
                if self._progress is not None:
                    took = duration(time.monotonic() - self._task_began)
                    end = f"{self._number(task)} done: {task.name}, {self._progress.summary(took)}"
                    task.done = True
                    left = "" if self._is_live else self.time_left()
                    self._print_progress(f"{end}; {left}" if left else end)
            finally:
                with self._lock:
                    self._progress = None

    def skip(self, kind: Literal["training", "scoring"], path: Path) -> None:
        """Count the next task of this kind and folder as done, because its result exists."""
        with self._lock:
            if task := self._next(kind, path):
                task.done = True

    def _next(self, kind: str, path: Path | None) -> SeriesTask | None:
        """Return the first task of this kind and folder that is not done; None if there is none."""
        return next((one for one in self._tasks if (one.kind, one.path, one.done) == (kind, path, False)), None)

    @contextmanager
    def scoring(self, path: str | Path | None) -> Iterator[None]:
        """Show, while the block runs, that it scores the run in this folder."""
        with self._doing("scoring", path):
            yield

    def progress_of(self, names: list[str]) -> Progress:
        """Return a progress display for the training that is running, with members of these names."""
        self._progress = _TrainingOfSeries(names, self)
        return self._progress

    @contextmanager
    def _doing(self, kind: Literal["training", "scoring"], path: str | Path | None) -> Iterator[SeriesTask]:
        """Note, while the block runs, that it does a task: the planned one or, if none was planned, a new one."""
        where = None if path is None else Path(path)
        with self._lock:
            task = self._next(kind, where)
            if task is None:
                task = SeriesTask(kind, "" if where is None else where.name, where)
                self._tasks.append(task)
            self._task, self._status, self._task_began = task, "", time.monotonic()
        if not self._is_live:
            start = f"{self._number(task)}: {task.name}"
            self._print_progress(start)
            self._meter.line_is_due(at_once=True)
        try:
            yield task
            task.done = True
            work, seconds = self._measured.get(task.key, (0.0, 0.0))
            self._measured[task.key] = work + task.work, seconds + time.monotonic() - self._task_began
        finally:
            with self._lock:
                self._task, self._status = None, ""

    # -- lines ----------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Print a message once, during a training with its name. A `Detail` is only shown in the line of progress."""
        task = self._task
        if isinstance(text, Detail) and (task is not None or self._is_live):
            self._status = text.strip()
            self.print_if_due()
        elif not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Print a warning once, during a training with its name. It is printed even if the progress is not shown."""
        task = self._task
        if task is not None and task.kind == "training":
            self._print(f"{task.name}: {text}", (task.group or task.name, text))
        else:
            self._print(text, text)

    def _print_progress(self, line: str) -> None:
        """Print a line about a task that begins or ends, unless `quiet` is set."""
        if not self._quiet:
            self._print(line, line)

    def _print(self, line: str, key: Hashable) -> None:
        """Print a line, unless one with the same key was printed before."""
        if key in self._printed:
            return
        self._printed.add(key)
        if self._live is not None:
            self._live.console.print(printed.printable(line), highlight=False, markup=False)
        else:
            printed.say(line)

    def print_if_due(self) -> None:
        """Print the line of progress into a log, if the last one was printed long ago."""
        if self._is_live or self._quiet or self._task is None:
            return
        whole = time.monotonic() - self._began + (self._seconds_left()[0] or 0.0)
        if self._meter.line_is_due(max(_SECONDS_BETWEEN_LINES, whole / _LINES)):
            printed.say(self.line(1000))

    def line(self, width: int) -> str:
        """Return the line of progress, cut to at most `width` characters."""
        task, running = self._task, self._progress
        if task is None:
            return one_line(self._status, width)
        place, detail = "", self._status
        if running is not None and not running.has_ended and (rate := running.rate):
            place, detail = running.place_and_speed(rate)
        head, left = f"{self._number(task)}: ", self.time_left()
        if not place:  # any text, which may be cut
            detail = one_line(detail, max(0, width - len(head) - len(_joined(task.name, left)) - 2))
            detail = detail if len(detail) >= _SHORTEST_DETAIL else ""
        for tail in ((place, detail, left), (place, detail, left.removesuffix(_SCORES)), (place, left)):
            room = width - len(head) - len(_joined(*tail)) - 2  # for the name
            if room >= min(len(task.name), _SHORTEST_NAME):
                break
        return (head + _joined(one_line(task.name, max(1, room)), *tail))[:width]

    def _view(self) -> Table:
        """Return the line as the terminal shows it, with a bar if there is room."""
        width = self._console.width - 1
        with self._lock:
            text, share = self.line(width), self._share_done()
        view = Table.grid(padding=(0, 2, 0, 0))
        shown = Text(text, no_wrap=True, overflow="ellipsis")
        if share is None or not text or len(text) + _BAR + 2 > width:
            view.add_row(shown)
        else:
            view.add_row(ProgressBar(1.0, share, width=_BAR, complete_style="cyan"), shown)
        return view

    def _number(self, task: SeriesTask) -> str:
        """Return the place of a task among those of its kind, such as "training 2 of 5"."""
        alike = [one for one in self._tasks if one.kind == task.kind]
        number = next(place for place, one in enumerate(alike, 1) if one is task)
        return f"{task.kind} {number} of {len(alike)}"

    # -- the time left --------------------------------------------------------------------------------------------

    def time_left(self) -> str:
        """Return a phrase for the time left of the whole series; empty if it is not known yet."""
        seconds, is_limit, lacks_scores = self._seconds_left()
        if seconds is None:
            return ""
        left = f"{'at most ' if is_limit else ''}{duration(seconds)} left"
        if lacks_scores:
            trains = any(task.kind == "training" and not task.done for task in self._tasks)
            return left + _SCORES if trains else "scores follow"
        return left

    def _seconds_left(self) -> tuple[float | None, bool, bool]:
        """Estimate the time left of the whole series.

        Returns:
            The seconds (None if not known), whether they are an upper limit, and whether the time for scores is missing
            in them.
        """
        total, is_limit, lacks_scores = 0.0, False, False
        for task in self._tasks:
            if task.done:
                continue
            seconds = self._left_of_task() if task is self._task else self._estimate(task)
            if seconds is None and task.kind == "training":
                return None, False, False
            lacks_scores |= seconds is None
            is_limit |= task.is_limit
            total += seconds or 0.0
        if lacks_scores and self._task is not None and self._task.kind == "scoring":
            return None, False, False
        return total, is_limit, lacks_scores

    def _left_of_task(self) -> float | None:
        """Estimate the seconds left of the task that is running; None if they are not known."""
        assert self._task is not None
        if self._progress is not None and (left := self._progress.seconds_left()) is not None:
            return left
        whole = self._estimate(self._task)
        return None if whole is None else max(0.0, whole - (time.monotonic() - self._task_began))

    def _estimate(self, task: SeriesTask) -> float | None:
        """Estimate the seconds of a task from others of its group, or else of its kind; None if none was measured."""
        if task.seconds is not None:
            return task.seconds
        measured, running = dict(self._measured), self._task
        if running is not None and self._progress is not None and (whole_seconds := self._progress.whole_seconds()):
            measured.setdefault(running.key, (running.work, whole_seconds))
        alike = [each for (kind, _), each in measured.items() if kind == task.kind]
        whole = (sum(work for work, _ in alike), sum(seconds for _, seconds in alike))
        work, seconds = measured.get(task.key, whole)
        return task.work * seconds / work if work else None

    def _share_done(self) -> float | None:
        """Return how much of the series is done, from 0 to 1. It never decreases. None if it is not known."""
        seconds, _, _ = self._seconds_left()
        if seconds is None or not self._tasks:
            return self._share or None
        gone = time.monotonic() - self._began
        self._share = max(self._share, gone / max(gone + seconds, 1e-9))
        return self._share


class _TrainingOfSeries(Progress):
    """The progress of one training of a series. It prints nothing itself: the series shows it in its line."""

    def __init__(self, names: list[str], series: SeriesProgress) -> None:
        super().__init__(names, quiet=True)
        self._series, self.has_ended = series, False
        self._reported: set[str] = set()  # the kinds of alarms
        self._first: int | None = None  # the step from which this process trains

    def at(self, step: int, seconds: float, members: float) -> None:
        if self._first is None:
            self._first = step - 1
        super().at(step, seconds, members)

    def record(self, line: Mapping[str, Any]) -> None:
        super().record(line)
        self._series.print_if_due()

    def close(self) -> None:
        super().close()
        self.has_ended = True

    def say(self, text: str) -> None:
        self._series.say(text)

    def say_alarms(self, step: int, begun: list[tuple[int, str]]) -> None:
        """Print alarms of kinds that this training has not had before.

        `summary` counts all members with alarms at the end.
        """
        super().say_alarms(step, [(member, what) for member, what in begun if what not in self._reported])
        self._reported |= {what for _, what in begun}

    def place_and_speed(self, rate: float) -> tuple[str, str]:
        """Return the step and the speed as text. `rate`: steps per second."""
        return f"step {self._place(self._step)}", self._speed(rate)

    def whole_seconds(self) -> float | None:
        """Estimate the seconds of all steps that this process trains; None if they are not known."""
        rate = self.rate
        return (self._steps - (self._first or 0)) / rate if rate and self._deadline is None else None

    def seconds_left(self) -> float | None:
        """Estimate the seconds of training that are left; None if the rate is not known yet."""
        rate = self.rate
        return self._seconds_left(self._step, rate) if rate else None

    def summary(self, took: str) -> str:
        """Return a phrase about the end of the training: its last step, the time that it `took`, and its alarms."""
        return f"step {self._step:,} in {took}, {self._how_many()}"


def _joined(*parts: str) -> str:
    """Return the parts that are not empty as one line."""
    return "  ".join(part for part in parts if part)
