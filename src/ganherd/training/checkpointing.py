"""Save checkpoints when they are due: in the thread that trains, or in a second one while a GPU trains on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import State, bytes_per_member
from ganherd.runs import checkpoint
from ganherd.runs.folder import saved_steps
from ganherd.runs.models import TrainerState
from ganherd.training.callbacks import Callback
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.disk import advice_on
from ganherd.util.errors import Interrupted
from ganherd.util.memory import available_memory

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class AsyncCheckpointWriter:
    """Write checkpoints in a thread, one at a time. Call `wait` before the files are read."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._going: Future[None] | None = None
        self._held: State = {}

    @classmethod
    def of(cls, herd: StackedHerd, alone: bool) -> AsyncCheckpointWriter | None:
        """Return a writer for a herd on a GPU in one process; None if checkpoints must be written in the foreground.

        That is so on a CPU, which is busy with training; on several ranks, which write a checkpoint together; and if
        the herd's state is in host memory, which has no room for a copy of it.

        Args:
            herd: The herd of this process.
            alone: Whether this is the only process of the run.
        """
        copied = bytes_per_member(herd.state) * herd.num_members
        has_room = herd.is_resident or 2 * copied < available_memory()
        return cls() if herd.device.type == "cuda" and alone and has_room else None

    def copy(self, state: State) -> State:
        """Return a copy of the state in host memory, which is allocated once and used again for every checkpoint.

        Waits first until the previous copy is written.
        """
        self.wait()
        for name, value in state.items():
            if name not in self._held or self._held[name].shape != value.shape:
                self._held[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._held[name].copy_(value.detach(), non_blocking=True)
        for device in {value.device for value in state.values() if value.is_cuda}:
            torch.cuda.synchronize(device)
        return {name: self._held[name] for name in state}

    def do(self, write: Callable[[], None]) -> None:
        """Wait until the previous checkpoint is written, then call `write` in the thread."""
        self.wait()
        self._going = self._thread.submit(write)

    def wait(self) -> None:
        """Wait until the checkpoint is written, if one is. If that failed, raise its error, at the first call only."""
        going, self._going = self._going, None
        if going is not None:
            going.result()


class Checkpointer(Callback):
    """Save checkpoints, and delete old ones except the newest, the best and the one that repairs roll back to."""

    def __init__(self, prepared: PreparedHerd) -> None:
        self._writer = AsyncCheckpointWriter.of(prepared.herd, prepared.ranks.is_single_process)

    def on_start(self, trainer: Trainer) -> None:
        if trainer.state.saved is None:  # so that the run can be resumed, and a member rolled back, from step 0 on
            self.save(trainer)

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.saves_at(trainer.step):
            self.save(trainer)

    def on_last_step(self, trainer: Trainer) -> None:
        self.save_if_needed(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        self.flush(trainer)

    def save_if_needed(self, trainer: Trainer) -> None:
        """Save the current step, unless it is saved already."""
        if trainer.state.saved != trainer.step:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save a checkpoint of the current step.

        A thread may still be writing it when this returns; `flush` waits for it.
        """
        step, state, ranks, folder = trainer.step, trainer.state, trainer.ranks, trainer.folder.checkpoints
        timing = ExitStack()  # closed when the checkpoint is written, in the thread that writes it
        timing.enter_context(trainer.budget.timing("checkpoint"))
        score = trainer.preview.look(step)
        if step == 0 or trainer.schedule.saves_at(step):
            state.last_good = step
            if score == score and (state.best is None or score < state.best[0]):
                state.best = (score, step)
            trainer.event("checkpoint", score=score, best=state.best[1] if state.best else None)
        self.flush(trainer)
        meta = TrainerState.parse({**state.facts(trainer.seconds), "score": score, "bytes": trainer.recorder.flush()})
        retained = [state.last_good, state.best[1] if state.best else None]
        tensors = state.tensors() if self._writer is None else self._writer.copy(state.tensors())

        def write() -> None:
            checkpoint.save(folder, step, tensors, trainer.herd.nets, meta, ranks)
            if ranks.is_first:
                checkpoint.prune(folder, trainer.schedule.settings.keep, retained)
            timing.close()

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
                self._give_up(trainer, trainer.state.saved, error)

    def _give_up(self, trainer: Trainer, step: int | None, error: OSError) -> None:
        """End the run on all ranks, because the checkpoint of `step` could not be written."""
        before = "the one before is whole" if saved_steps(trainer.folder.checkpoints) else "it is the first one"
        trainer.strategy.on_interrupt()
        why = f"the checkpoint of step {step} could not be written ({error.strerror}); {before}. {advice_on(error)}"
        trainer.ranks.finish(Interrupted(why.rstrip()))
