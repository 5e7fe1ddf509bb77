"""Work that does not depend on each other, side by side: small kernels of one part fill the gaps that another leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStreams:
    """Streams beside the current one. A captured graph keeps them as branches; gradients flow back through the same lanes.

    What a lane makes may be read by the current stream after `join`. Its memory is given to nobody else before the lane is
    entered again, and then it waits for everything that the current stream has done.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]
        # gradients come from other streams than their leaves, on purpose: PyTorch would warn of it, at length
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    @contextmanager
    def fork(self, number: int) -> Iterator[None]:
        """Starts when all is done that was asked for so far, and runs beside what follows."""
        lane = self._streams[number]
        lane.wait_stream(torch.cuda.current_stream(lane.device))
        with torch.cuda.stream(lane):
            yield

    def join(self, number: int) -> None:
        """What follows waits for that lane."""
        lane = self._streams[number]
        torch.cuda.current_stream(lane.device).wait_stream(lane)
