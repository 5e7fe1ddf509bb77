"""Writing a checkpoint while a herd on a GPU trains on: a copy in the host's memory, and a thread that puts it on the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ganherd.herd.state import State


class AsyncCheckpointWriter:
    """One checkpoint at a time: the next waits for it, and so does whoever reads one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._going: Future[None] | None = None
        self._held: State = {}

    @classmethod
    def of(cls, device: torch.device, alone: bool) -> AsyncCheckpointWriter | None:
        """For a herd on a GPU in one process. Ranks write together, at a step that all are at; a CPU has other work."""
        return cls() if device.type == "cuda" and alone else None

    def copy(self, state: State) -> State:
        """The state as it is now, in memory that is used again for every checkpoint."""
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
        """Until what is being written is there; raises what went wrong with it, once."""
        going, self._going = self._going, None
        if going is not None:
            going.result()
