"""Write metrics.jsonl and events.jsonl while a run trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.runs.records import PROCESS_EVENTS, JsonLinesWriter, significant
from ganherd.training.callbacks import Callback
from ganherd.training.recording.validation import Validation
from ganherd.util.files import JsonObject

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Recorder(Callback):
    """Write records (lines of metrics.jsonl) when they are due, and events when they happen.

    Only the first rank writes.
    """

    def __init__(self, trainer: Trainer) -> None:
        """Open the files of the trainer's run, cut to the length that the resumed checkpoint names."""
        images, folder, ends = trainer.schedule.settings.validation, trainer.folder, trainer.state.written
        self._validation = Validation(trainer.prepared, images) if images and trainer.writes else None
        self._lines: dict[str, JsonLinesWriter] = {}
        if trainer.writes and trainer.ranks.is_first:
            for name, path in {"metrics": folder.metrics_path, "events": folder.events_path}.items():
                length = 0 if ends is None else ends.get(name)
                self._lines[name] = JsonLinesWriter(path, length, sums=name == "metrics")

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.records_at(trainer.step):
            self.record(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        self.record(trainer)

    def record(self, trainer: Trainer) -> None:
        """Write one record, with means over the steps since the previous one. Do nothing if there are no such steps."""
        if trainer.step <= trainer.state.tally.since:
            return
        with trainer.budget.timing("record"):
            line = self._line(trainer)
        if "metrics" in self._lines:
            self._lines["metrics"].write(line)
            trainer.progress.record(line)
            trainer.notify("on_record", line)

    def event(self, step: int, event: str, facts: JsonObject) -> bool:
        """Write an event; return whether this rank writes events."""
        if "events" not in self._lines:
            return False
        known = facts if event in PROCESS_EVENTS else significant(facts)
        self._lines["events"].write({"step": step, "event": event, **known})
        return True

    def flush(self) -> dict[str, int]:
        """Make sure that all lines are on the disk, and return the length of each file in bytes."""
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
        """Return the record of this step, with the numbers of all members. Called by all ranks together."""
        step, tally, monitor = trainer.step, trainer.state.tally, trainer.state.monitor
        line = {
            "step": step,
            "epoch": round(step / trainer.prepared.steps_per_epoch, 4),
            "seconds": round(trainer.seconds, 3),
            "rate": round(trainer.progress.rate * tally.per_step, 1),
            **tally.means(step),
        }
        looked = int(trainer.ranks.all_gather(monitor.state["watch.at"]).max())
        if looked > tally.since:  # members were looked at since the last record
            line |= {"looked": looked, **{k: [round(v, 4) for v in each] for k, each in monitor.scores().items()}}
        herd = trainer.prepared.herd
        if herd.rules.augment_target is not None:
            strengths = trainer.ranks.all_gather(herd.state["set.augment_probability"])
            line["augment"] = [round(v, 4) for v in strengths.tolist()]
        if self._validation:
            line |= {name: [round(v, 5) for v in each] for name, each in self._validation.look().items()}
        return line | trainer.strategy.metrics()
