"""The interface of callbacks, whose hooks the training loop calls, and the small callbacks of ganherd itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ganherd.util.objects.memory_objects import fingerprint

if TYPE_CHECKING:
    from ganherd.training.finish import TrainedRun
    from ganherd.training.loop import Trainer


class Callback:
    """Take part in a training by overriding hooks. ganherd's own components are callbacks, too.

    The loop trains from stop to stop; a stop is a step at which anything but training happens. At a stop the loop calls
    `on_arrival`, `on_stop` and `on_stop_end`, each on all callbacks in their order. A callback may read the trainer and
    call its methods, but must not set its attributes. On several ranks each rank has its own callbacks, and all ranks
    call the same hooks at the same step.

    A class may set `every`, the number of steps between the stops that it needs. It must set `changes_result = True` if
    it changes the members; otherwise the run ends with an error when it does.

    >>> class Losses(Callback):
    ...     def on_record(self, trainer, record):
    ...         print(record["step"], len(record["loss_g"]))
    >>> import ganherd
    >>> run = ganherd.train(budget=50, callbacks=[Losses()], run="runs/watched", quiet=True)
    50 10
    """

    every = 0  # steps between the stops that this callback needs; 0: it needs no stops
    changes_result = False  # whether it may change the members; then a resumed run needs the same callback
    _fingerprint: str | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Act before the first step of this process."""

    def on_departure(self, trainer: Trainer) -> None:
        """Act before the loop trains from the current step to the next stop."""

    def on_step_end(self, trainer: Trainer, step: int) -> None:
        """Act after every step. This must be cheap, because it may be called thousands of times per second."""

    def on_arrival(self, trainer: Trainer) -> None:
        """Act on arrival at a stop, before anything has changed there."""

    def on_stop(self, trainer: Trainer) -> None:
        """Act at a stop: do what is due at the current step."""

    def on_stop_end(self, trainer: Trainer, step_seconds: float) -> None:
        """Act when everything that was due at the current step is done.

        Args:
            step_seconds: Mean seconds of a step since the previous stop.
        """

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        """Receive a record of metrics.jsonl. Called on the first rank only."""

    def on_event(self, trainer: Trainer, event: str, facts: Mapping[str, Any]) -> None:
        """Receive an event of events.jsonl. Called on the first rank only."""

    def on_alarm(self, trainer: Trainer, alarm: str, member: int, facts: Mapping[str, Any]) -> None:
        """Receive an alarm about a member when it begins, before the member is repaired.

        Args:
            alarm: `nan`, `diverged`, `collapse`, `cycling`, `dead_critic` or `memorising`.
            facts: The name of the member, and the scores that raised the alarm.
        """

    def on_meeting(self, trainer: Trainer) -> None:
        """Act after members have met at the current step, before a checkpoint may be saved."""

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """Act after the checkpoint of a step was saved, or was handed to the thread that writes it."""

    def on_repair(self, trainer: Trainer, row: int) -> None:
        """Act before a repair changes a row of this rank's herd."""

    def on_last_step(self, trainer: Trainer) -> None:
        """Act after the last step, before `on_train_end` is called on any callback."""

    def on_train_end(self, trainer: Trainer) -> None:
        """Act after the last step is saved.

        A longer run continues from that step, without changes that are made here.
        """

    def on_finish(self, trainer: Trainer, run: TrainedRun) -> None:
        """Act when the run is finished: its mixture, scores and report are made. Called on the first rank only."""

    def close(self) -> None:
        """Release the callback's resources, such as open files. Called once in each training, even if it fails."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the callback's code and settings.

        It is computed at the first call only, because the callback may change while it takes part in a training.
        """
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self)
        return self._fingerprint

    def implements(self, hook: str) -> bool:
        """Return whether the class of this callback overrides the hook of this name."""
        return getattr(getattr(self, hook), "__func__", None) is not getattr(Callback, hook)

    def call(self, hook: str, trainer: Trainer, *values: Any) -> None:
        """Call the hook of this name. `values`: its arguments after the trainer."""
        getattr(self, hook)(trainer, *values)


class Looks(Callback):
    """Check the health of members when it is due: before the first step, at regular intervals, and after the last step."""

    def on_start(self, trainer: Trainer) -> None:
        if trainer.state.saved is None and trainer.schedule.looks.every:
            self._look(trainer)  # later looks compare the variety of samples with that of fresh weights

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.looks_at(trainer.step):
            self._look(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        if trainer.schedule.looks.every and not trainer.schedule.looks_at(trainer.step):
            self._look(trainer)

    def _look(self, trainer: Trainer) -> None:
        """Compute the health scores of all members now, and show them."""
        monitor = trainer.state.monitor
        with trainer.budget.timing("look"):
            monitor.look(trainer.step)
        if trainer.ranks.is_single_process:  # several ranks exchange their scores only with the next record
            trainer.progress.look(monitor.scores())


class RecordWindow(Callback):
    """Reset the sums of losses and logits after each record.

    This callback comes after all callbacks that read these sums.
    """

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.records_at(trainer.step):
            trainer.state.tally.begin(trainer.step)


class Meetings(Callback):
    """Let the strategy act at the steps at which members meet.

    On arrival `strategy.close` finishes what the previous meeting started, before a checkpoint may be saved. Before the
    loop trains on, `strategy.open` starts what lasts until the next meeting.
    """

    def on_departure(self, trainer: Trainer) -> None:
        trainer.sync.part(trainer.step, trainer.schedule.last)
        if trainer.step == 0 or trainer.strategy.meets_at(trainer.step):
            trainer.record_events(trainer.strategy.open(trainer.step))

    def on_stop(self, trainer: Trainer) -> None:
        step, strategy = trainer.step, trainer.strategy
        if strategy.meets_at(step):
            trainer.record_events(strategy.close(step, continues=step < trainer.schedule.last))
            trainer.notify("on_meeting")
        if strategy.max_unsynced_steps and trainer.sync.at(step):
            trainer.record_events(strategy.end_unsynced(step))


class SamplePictures(Callback):
    """Draw a picture of samples when one is due, and after the last step."""

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.draws_at(trainer.step):
            self._draw(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        if not trainer.schedule.draws_at(trainer.step):
            self._draw(trainer)

    def _draw(self, trainer: Trainer) -> None:
        """Save a picture of samples of the current step, and show its path."""
        path = trainer.folder.samples / f"step-{trainer.step:08d}.png"
        with trainer.budget.timing("picture"):
            trainer.preview.look(trainer.step)
            trainer.preview.draw(path, trainer.folder.title, trainer.step)
        trainer.progress.picture(path)
