"""Write metrics.jsonl and events.jsonl while a run trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.runs.folder import RunFolder
from ganherd.runs.records import PROCESS_EVENTS, JsonLinesWriter, significant
from ganherd.strategies.strategy import Strategy
from ganherd.training.callbacks import Callback
from ganherd.training.recording.preview import Preview
from ganherd.training.recording.validation import Validation
from ganherd.training.run_state import RunState
from ganherd.training.schedule import Schedule
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.files import JsonObject
from ganherd.util.progress import Progress

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Recorder(Callback):
    """Write a record when one is due, and events when they happen. Of several ranks only the first one writes."""

    def __init__(
        self,
        prepared: PreparedHerd,
        folder: RunFolder | None,
        state: RunState,
        schedule: Schedule,
        strategy: Strategy,
        progress: Progress,
    ) -> None:
        """`folder`: None: nothing is written."""
        self._prepared, self._state, self._schedule = prepared, state, schedule
        self._strategy, self._progress = strategy, progress
        images = schedule.settings.validation
        self._validation = Validation(prepared, images) if images else None
        self._lines: dict[str, JsonLinesWriter] = {}
        if folder is not None and prepared.ranks.is_first:
            ends = state.written
            for name, path in {"metrics": folder.metrics_path, "events": folder.events_path}.items():
                length = 0 if ends is None else ends.get(name)
                self._lines[name] = JsonLinesWriter(path, length, sums=name == "metrics")

    def on_stop(self, trainer: Trainer) -> None:
        if self._schedule.records_at(trainer.step):
            self.record(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        self.record(trainer)

    def record(self, trainer: Trainer) -> None:
        """Write one record: means over the steps since the one before."""
        if trainer.step <= self._state.tally.since:
            return
        line = self._line(trainer)
        if self._prepared.ranks.is_first:
            if "metrics" in self._lines:
                self._lines["metrics"].write(line)
            self._progress.record(line)
            trainer.notify("on_record", line)

    def event(self, step: int, event: str, facts: JsonObject) -> bool:
        """Write an event; return whether this rank writes events."""
        if "events" not in self._lines:
            return False
        known = facts if event in PROCESS_EVENTS else significant(facts)
        self._lines["events"].write({"step": step, "event": event, **known})
        return True

    def flush(self) -> dict[str, int]:
        """Put all lines on the disk, and return the length of each file in bytes."""
        return {name: lines.flush() for name, lines in self._lines.items()}

    @property
    def ends(self) -> dict[str, int]:
        """The length of each file in bytes."""
        return {name: lines.end for name, lines in self._lines.items()}

    def close(self) -> None:
        """Close the files."""
        for lines in self._lines.values():
            lines.close()

    def _line(self, trainer: Trainer) -> JsonObject:
        """Return the numbers of all members at this step; all ranks ask for them together."""
        step, tally, monitor = trainer.step, self._state.tally, self._state.monitor
        line = {
            "step": step,
            "epoch": round(step / self._prepared.steps_per_epoch, 4),
            "seconds": round(trainer.seconds, 3),
            "rate": round(self._progress.rate * tally.per_step, 1),
            **tally.means(step),
        }
        looked = int(self._prepared.ranks.all_gather(monitor.state["watch.at"]).max())
        if looked > tally.since:  # the last look since the last record
            line |= {"looked": looked, **{k: [round(v, 4) for v in each] for k, each in monitor.scores().items()}}
        if self._validation:
            line |= {name: [round(v, 5) for v in each] for name, each in self._validation.look().items()}
        return line | self._strategy.metrics()


class RecordWindow(Callback):
    """Begin the next record's window. This comes after everything that reads the sums of the last one."""

    def __init__(self, state: RunState, schedule: Schedule) -> None:
        self._state, self._schedule = state, schedule

    def on_stop(self, trainer: Trainer) -> None:
        if self._schedule.records_at(trainer.step):
            self._state.tally.begin(trainer.step)


class SamplePictures(Callback):
    """Draw a picture of samples when one is due, and after the last step."""

    def __init__(self, preview: Preview, folder: RunFolder, schedule: Schedule) -> None:
        self._preview, self._folder, self._schedule = preview, folder.samples, schedule

    def on_stop(self, trainer: Trainer) -> None:
        if self._schedule.draws_at(trainer.step):
            self._draw(trainer.step)

    def on_train_end(self, trainer: Trainer) -> None:
        if not self._schedule.draws_at(trainer.step):
            self._draw(trainer.step)

    def _draw(self, step: int) -> None:
        self._preview.look(step)
        self._preview.draw(self._folder / f"step-{step:08d}.png")
