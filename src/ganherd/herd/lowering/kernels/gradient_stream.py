"""Compute weight gradients on a parallel CUDA stream, because only Adam waits for them.

The backward pass continues with the preceding layer while the gradient of a layer's weights is computed. So small kernels fill
what the large ones leave of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_MOST = 1 << 27  # numbers; larger inputs keep the GPU busy by themselves, and holding them longer would take memory

Gradients = tuple[Tensor, Tensor | None]  # of a weight and a bias


class GradientStream:
    """A stream for the weight gradients of one backward pass.

    The backward pass runs in a thread of PyTorch. Therefore a layer asks for the stream in its forward pass (`current`).
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._held: list[tuple[Tensor, ...]] = []  # what the stream reads: its memory must not be reused before `join`

    @contextmanager
    def active(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Offer the stream to the layers of a forward pass inside this context.

        Args:
            parameters: Those that the pass uses only once. PyTorch adds the gradients of several uses, and would not wait for
                this stream.
        """
        token = _CURRENT.set((self, frozenset(parameter.data_ptr() for parameter in parameters)))
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def run(self, compute: Callable[[], Gradients], *inputs: Tensor) -> Gradients:
        """Return the gradients, computed on the stream unless the inputs are large. Nothing may read them before `join`."""
        if sum(one.numel() for one in inputs) > _MOST:
            return compute()
        self._held.append(inputs)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return compute()

    def join(self) -> None:
        """Let the current stream wait for all gradients, and release what they were computed from."""
        if self._held:  # a captured graph must not wait for a stream that it does not contain
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._held.clear()


_CURRENT: ContextVar[tuple[GradientStream, frozenset[int]] | None] = ContextVar("gradient_stream", default=None)


def current(weight: Tensor, bias: Tensor | None) -> GradientStream | None:
    """Return the stream for the gradients of a layer in this forward pass; None if they are read during the backward pass.

    So are those of parameters that are used more than once, and of tensors that were computed from parameters.
    """
    offer = _CURRENT.get()
    if offer is None:
        return None
    stream, once = offer
    parameters = [weight] if bias is None else [weight, bias]
    return stream if all(one.is_leaf and one.data_ptr() in once for one in parameters) else None
