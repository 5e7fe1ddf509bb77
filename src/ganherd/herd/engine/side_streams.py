"""Run independent work on parallel CUDA streams, so that small kernels of one stream fill the gaps of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

# Priorities of CUDA streams: high for work that other work waits for, default for work that fills the gaps.
HIGH_PRIORITY, DEFAULT_PRIORITY = -1, 0


class SideStreams:
    """CUDA streams that fork from the current stream and join it again. In a captured graph they become parallel branches.

    The current stream may read results of a side stream after `join`. Their memory is safe until then and afterwards:
    PyTorch's allocator reuses it only for the same side stream, whose next fork first waits for all work of the current
    stream. A backward pass runs on the streams of its forward pass.
    """

    def __init__(self, device: torch.device, priorities: Sequence[int]) -> None:
        """Create a stream on the device for each priority; see `HIGH_PRIORITY`."""
        self.device = device
        self._streams = [torch.cuda.Stream(device, priority=priority) for priority in priorities]
        # Gradients come from other streams than their leaves on purpose; PyTorch would warn about it at length.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    @contextmanager
    def fork(self, number: int) -> Iterator[None]:
        """Run the context's body on a side stream: after the current stream's work so far, parallel to later work."""
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield

    def join(self, number: int) -> None:
        """Make the current stream wait for all work of a side stream."""
        stream = self._streams[number]
        torch.cuda.current_stream(stream.device).wait_stream(stream)
