"""Keep points of a training on the way, with the time of each, so that they can be scored after the clock has stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ganherd import Callback
from ganherd.runs.checkpoint import Damaged, path_of, read_meta
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.training.finish import TrainedRun
from ganherd.training.loop import Trainer


@dataclass(frozen=True)
class Point:
    """A checkpoint that was kept, as a run folder with one checkpoint."""

    path: Path

    @property
    def phase(self) -> str:
        """The name of the run that it belongs to."""
        return self.path.name.rpartition("-")[0]

    @property
    def step(self) -> int:
        return saved_steps(RunFolder(self.path).checkpoints)[-1]

    @property
    def recorded(self) -> float:
        """The seconds that its checkpoint records."""
        return read_meta(path_of(RunFolder(self.path).checkpoints, self.step)).seconds


class KeepPoints(Callback):
    """Keep one checkpoint in every `interval` recorded seconds by links, and log when phases begin and end.

    Args:
        folder: Gets the points, and `clock.jsonl` with a line for each event.
        interval: Seconds between points.
        began: When the command was started, on the clock of `time.monotonic`.
    """

    def __init__(self, folder: Path, interval: float, began: float) -> None:
        self._folder, self._interval, self._began = folder, interval, began
        self._trainer: Trainer | None = None  # until its last step

    def on_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._log(trainer, "first step")

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """Link all checkpoints on the disk. That of this step may still be written: it is linked after the next one."""
        for one in saved_steps(trainer.folder.checkpoints):
            self._keep(trainer.folder, one)

    def on_train_end(self, trainer: Trainer) -> None:
        self._log(trainer, "last step")
        self._trainer = None

    def on_finish(self, trainer: Trainer, run: TrainedRun) -> None:
        self._log(trainer, "mixture")

    def close(self) -> None:
        if self._trainer:
            self._log(self._trainer, "stopped")
            self._trainer = None

    def _log(self, trainer: Trainer, event: str) -> None:
        phase, at = trainer.folder.path.name, time.monotonic() - self._began
        with (self._folder / "clock.jsonl").open("a") as file:
            file.write(json.dumps({"phase": phase, "event": event, "at": at, "recorded": trainer.seconds}) + "\n")

    def _keep(self, run: RunFolder, step: int) -> None:
        checkpoint = path_of(run.checkpoints, step)
        try:
            number = int(read_meta(checkpoint).seconds // self._interval)
        except Damaged:
            return
        point = self._folder / "points" / f"{run.path.name}-{number:03d}"
        if number == 0 or point.exists():
            return
        aside = point.with_suffix(".aside")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(checkpoint, aside / "checkpoints" / checkpoint.name, copy_function=os.link)
        for name in (run.info_path.name, run.recipe_path.name):
            shutil.copyfile(run.path / name, aside / name)
        aside.rename(point)


class StopAfter(Callback):
    """Stop the training at a time on the clock of `time.monotonic`, or at its first step if that is later."""

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._timer: threading.Timer | None = None

    def on_start(self, trainer: Trainer) -> None:
        self.close()
        left = max(0.0, self._time_limit - time.monotonic())
        self._timer = threading.Timer(left, os.kill, (os.getpid(), signal.SIGINT))
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()


def points_of(folder: Path) -> list[Point]:
    """Return the points that were kept, in the order of their phases and steps."""
    order = list(Clock.read(folder).phases)
    paths = [path for path in (folder / "points").glob("*") if path.is_dir() and path.suffix != ".aside"]
    return sorted(map(Point, paths), key=lambda point: (order.index(point.phase), point.step))


@dataclass(frozen=True)
class Event:
    """A line of clock.jsonl: when a phase trained its first or last step, was stopped, or had its mixture."""

    phase: str
    event: str
    at: float  # seconds since the command that trained this piece
    recorded: float  # seconds that the run records, in which the start of each piece is included


@dataclass(frozen=True)
class Clock:
    """The time of a training in one or several pieces: a start counts once, then all training, then the mixture."""

    events: Sequence[Event]

    @classmethod
    def read(cls, folder: Path) -> Clock:
        """Read the log of `KeepPoints`."""
        return cls([Event(**json.loads(line)) for line in (folder / "clock.jsonl").read_text().splitlines()])

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(event.phase for event in self.events))

    @property
    def start(self) -> float:
        """Seconds from the first command to the first step."""
        return self.events[0].at

    @property
    def mixture(self) -> float:
        """Seconds from the last step to the saved mixture."""
        last, end = self.events[-1], self._last_step(self.phases[-1])
        return last.at - end.at

    def switch(self, phase: str) -> float:
        """Return the seconds before the first step of a later phase, from the last step of the phase before."""
        before = self.phases[self.phases.index(phase) - 1]
        first = next(event for event in self.events if event.phase == phase)
        return first.at - self._last_step(before).at

    def trained(self, phase: str, recorded: float = float("inf")) -> float:
        """Return the seconds of training in a phase up to a recorded second, without the starts of its pieces."""
        seconds, began = 0.0, 0.0
        for event in self.events:
            if event.phase == phase and event.event == "first step":
                began = event.recorded
            elif event.phase == phase and event.event in ("stopped", "last step"):
                seconds += max(0.0, min(event.recorded, recorded) - began)
        return seconds

    def at(self, phase: str, recorded: float = float("inf")) -> float:
        """Return the seconds from the command to a mixture that is made after a recorded second of a phase."""
        number = self.phases.index(phase)
        earlier = sum(self.trained(one) for one in self.phases[:number])
        switches = sum(map(self.switch, self.phases[1 : number + 1]))
        return self.start + earlier + switches + self.trained(phase, recorded) + self.mixture

    def _last_step(self, phase: str) -> Event:
        return next(one for one in reversed(self.events) if one.phase == phase and one.event == "last step")
