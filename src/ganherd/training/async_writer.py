"""Write checkpoints while a GPU trains on: copy the state into the host's memory, and let a thread write it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ganherd.herd.state import State


class AsyncCheckpointWriter:
    """Write one checkpoint at a time in a thread; the next one waits for it, and so does everything that reads one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._going: Future[None] | None = None
        self._held: State = {}

    @classmethod
    def of(cls, device: torch.device, alone: bool) -> AsyncCheckpointWriter | None:
        """Return a writer for a herd on a GPU in one process; None otherwise: ranks write together, and a CPU is busy."""
        return cls() if device.type == "cuda" and alone else None

    def copy(self, state: State) -> State:
        """Copy the current state into memory that every checkpoint uses."""
        self.wait()
        for name, value in state.items():
            if name not in self._held or self._held[name].shape != value.shape:
                self._held[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._held[name].copy_(value.detach(), non_blocking=True)
        for device in {value.device for value in state.values() if value.is_cuda}:
            torch.cuda.synchronize(device)
        return {name: self._held[name] for name in state}

    def do(self, write: Callable[[], None]) -> None:
        self.wait()
        self._going = self._thread.submit(write)

    def wait(self) -> None:
        """Wait until the checkpoint is written. Raises its error, once."""
        going, self._going = self._going, None
        if going is not None:
            going.result()
