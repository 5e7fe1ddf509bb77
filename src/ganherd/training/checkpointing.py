"""Save checkpoints when they are due, in the foreground or while a GPU trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.runs.models import TrainerState
from ganherd.training.async_writer import AsyncCheckpointWriter
from ganherd.training.callbacks import Callback
from ganherd.training.recording.preview import Preview
from ganherd.training.recording.recorder import Recorder
from ganherd.training.run_state import RunState
from ganherd.training.schedule import Schedule
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.disk import advice_on
from ganherd.util.errors import Interrupted

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Checkpointer(Callback):
    """Save checkpoints, and keep the newest, the best and the one that repairs roll back to."""

    def __init__(
        self,
        prepared: PreparedHerd,
        folder: RunFolder,
        state: RunState,
        schedule: Schedule,
        recorder: Recorder,
        preview: Preview,
    ) -> None:
        self._nets, self._ranks, self._folder = prepared.herd.nets, prepared.ranks, folder.checkpoints
        self._state, self._schedule, self._recorder, self._preview = state, schedule, recorder, preview
        self._writer = AsyncCheckpointWriter.of(prepared.herd.device, prepared.ranks.is_single_process)

    def on_train_start(self, trainer: Trainer) -> None:
        if (
            self._state.saved is None
        ):  # so that the run can be resumed, and a member rolled back, from the first moment on
            self.save(trainer)

    def on_stop(self, trainer: Trainer) -> None:
        if self._schedule.saves_at(trainer.step):
            self.save(trainer)

    def on_last_step(self, trainer: Trainer) -> None:
        self.save_if_needed(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        self.flush(trainer)

    def save_if_needed(self, trainer: Trainer) -> None:
        """Save the current step, unless it is saved already."""
        if self._state.saved != trainer.step:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save a checkpoint. It may still be being written when this returns: see `flush`."""
        step, state, ranks = trainer.step, self._state, self._ranks
        score, _ = self._preview.look(step)
        if step == 0 or self._schedule.saves_at(step):
            state.last_good = step
            if score == score and (state.best is None or score < state.best[0]):
                state.best = (score, step)
            trainer.event("checkpoint", score=score, best=state.best[1] if state.best else None)
        self.flush(trainer)
        meta = TrainerState.parse({**state.facts(trainer.seconds), "score": score, "bytes": self._recorder.flush()})
        retained = [state.last_good, state.best[1] if state.best else None]
        tensors = state.tensors() if self._writer is None else self._writer.copy(state.tensors())

        def write() -> None:
            checkpoint.save(self._folder, step, tensors, self._nets, meta, ranks)
            if ranks.is_first:
                checkpoint.prune(self._folder, self._schedule.settings.keep, retained)

        try:
            if self._writer is None:
                write()
            else:
                self._writer.do(write)
        except OSError as error:
            self._give_up(trainer, step, error)
        state.saved = step
        trainer.notify("on_checkpoint", step)

    def flush(self, trainer: Trainer) -> None:
        """Wait until the last checkpoint is on the disk."""
        if self._writer is not None:
            try:
                self._writer.wait()
            except OSError as error:
                self._give_up(trainer, self._state.saved, error)

    def _give_up(self, trainer: Trainer, step: int | None, error: OSError) -> None:
        before = "the one before is whole" if checkpoint.steps(self._folder) else "it is the first one"
        trainer.strategy.on_stop()
        why = f"the checkpoint of step {step} could not be written ({error.strerror}); {before}. {advice_on(error)}"
        self._ranks.finish(Interrupted(why.rstrip()))
