"""Compute weight gradients on a second CUDA stream, because nothing but Adam waits for them.

While the gradient of a layer's weights is computed, the backward pass already continues with the preceding layer. So
small kernels use the parts of the GPU that larger ones leave idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

# Layers whose inputs have more numbers stay on the main stream: they keep the GPU busy alone, and their inputs take
# much memory.
_MOST = 1 << 27

Gradients = tuple[Tensor, Tensor | None]  # the gradients of a weight and of a bias; None: no gradient of a bias


class GradientStream:
    """A CUDA stream for the weight gradients of one backward pass.

    PyTorch runs the backward pass in another thread, which does not see the context variable that `active` sets.
    Therefore a layer asks for the stream in its forward pass (`current`) and remembers it.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._held: list[tuple[Tensor, ...]] = []  # what the stream reads: its memory must not be reused before `join`

    @contextmanager
    def active(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Offer the stream to the layers of a forward pass that runs inside this context.

        Args:
            parameters: The parameters that the pass uses exactly once. The others are excluded: PyTorch adds the
                gradients of their uses during the backward pass, on the main stream and without waiting for this one.
        """
        token = _CURRENT.set((self, frozenset(parameter.data_ptr() for parameter in parameters)))
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def run(self, compute: Callable[[], Gradients], *inputs: Tensor) -> Gradients:
        """Return `compute()`, run on this stream unless the inputs are large.

        Nothing may read the gradients before `join`.

        Args:
            inputs: All tensors that `compute` reads.
        """
        if sum(one.numel() for one in inputs) > _MOST:
            return compute()
        self._held.append(inputs)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return compute()

    def join(self) -> None:
        """Make PyTorch's current stream wait for all gradients of this stream, and release the inputs of `run`."""
        if self._held:  # a captured graph must not wait for a stream that it does not contain
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._held.clear()


_CURRENT: ContextVar[tuple[GradientStream, frozenset[int]] | None] = ContextVar("gradient_stream", default=None)


def current(weight: Tensor, bias: Tensor | None) -> GradientStream | None:
    """Return the stream on which a layer's backward pass should compute the gradients of its weight and bias.

    None if there is no stream, or if the backward pass itself reads the gradients: those of parameters that are used
    more than once (it adds them), and those of tensors that were computed from parameters (it differentiates further).
    """
    offer = _CURRENT.get()
    if offer is None:
        return None
    stream, once = offer
    parameters = [weight] if bias is None else [weight, bias]
    return stream if all(one.is_leaf and one.data_ptr() in once for one in parameters) else None
