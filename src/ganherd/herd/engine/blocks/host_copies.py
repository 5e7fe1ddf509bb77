"""Copy tensors between ordinary (not pinned) host memory and a device in the background."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from ganherd.util.host import cores

_PIECE = 16 << 20  # bytes that a thread copies at a time
_THREADS = 4  # threads for each direction; together they are about as fast as the bus


class HostCopies:
    """Threads that copy in one direction while the device does other work.

    A GPU can copy while it computes only from and to pinned host memory. Pinning gigabytes takes long, and pinned
    memory is not available to other programs. So each thread has a small pinned buffer, through which it copies one
    piece after another.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate the pinned buffers if the device is a GPU. Threads start with the first copies."""
        self._device = device
        threads = max(1, min(_THREADS, cores() // 2))
        self._threads = ThreadPoolExecutor(threads, "ganherd-blocks")
        self._copies: list[Future[None]] = []
        self._stream: torch.cuda.Stream | None = None
        self._buffers: SimpleQueue[Tensor] = SimpleQueue()  # pinned, uint8 [_PIECE]
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            for _ in range(threads):
                self._buffers.put(torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True))

    def start(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Start to copy tensors to tensors of the same shape and dtype, after all work that was sent to the device so far.

        Args:
            pairs: (target, source), both contiguous; neither may be used before `wait`.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for target, source in pairs:
            for piece in zip(_pieces(target), _pieces(source), strict=True):
                self._copies.append(self._threads.submit(self._copy, *piece))

    def wait(self) -> None:
        """Wait until all copies are complete. Raises the error of a copy that failed."""
        copies, self._copies = self._copies, []
        futures.wait(copies)  # all of them, even if one has failed
        for copy in copies:
            copy.result()

    def _copy(self, target: Tensor, source: Tensor) -> None:
        """Copy one piece, uint8 [m], through a pinned buffer if the device is a GPU."""
        if self._stream is None:
            target.copy_(source)
            return
        buffer = self._buffers.get()
        pinned = buffer[: len(source)]
        try:
            if target.is_cuda:  # NumPy copies in this thread alone, without holding Python's lock
                np.copyto(pinned.numpy(), source.numpy())
                self._transfer(target, pinned)
            else:
                self._transfer(pinned, source)
                np.copyto(target.numpy(), pinned.numpy())
        finally:
            self._buffers.put(buffer)

    def _transfer(self, target: Tensor, source: Tensor) -> None:
        """Copy between a pinned buffer and the GPU on this object's own CUDA stream, and wait for the copy."""
        done = torch.cuda.Event(blocking=True)  # a thread that waits takes no core
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            done.record()
        done.synchronize()


def _pieces(value: Tensor) -> Iterator[Tensor]:
    """Return an iterator over views uint8 [m] of at most `_PIECE` bytes that together are a contiguous tensor."""
    assert value.is_contiguous()
    return iter(value.view(-1).view(torch.uint8).split(_PIECE)) if value.numel() else iter(())
