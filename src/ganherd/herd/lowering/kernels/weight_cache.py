"""Cache tensors that are computed from weights: several forward passes of a training step use the same weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_Cache = dict[tuple[Hashable, ...], tuple[Tensor, Tensor]]  # (memory of a weight, settings) -> (weight, result)
_CACHE: ContextVar[_Cache | None] = ContextVar("cache", default=None)


@contextmanager
def cache_weights(keep: bool = True) -> Iterator[None]:
    """Let `cached` store results for reuse inside this context.

    While a CUDA graph is captured, enter a new context for each step: a replay of the graph does not have results from
    before the capture, so that the graph must contain the computation of each result it uses.

    Args:
        keep: False: store nothing inside this context, because no other forward pass has the same weights.
    """
    token = _CACHE.set({} if keep else None)
    try:
        yield
    finally:
        _CACHE.reset(token)


def cached(weight: Tensor, compute: Callable[[], Tensor], *settings: Hashable) -> Tensor:
    """Return `compute()`, or its earlier result inside the same `cache_weights` context if nothing has changed since.

    Args:
        weight: The tensor from which `compute` computes; an in-place change makes earlier results invalid.
        settings: Everything else that the result depends on.
    """
    cache = _CACHE.get()
    if cache is None:
        return compute()
    key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight._version, *settings)
    if key not in cache:
        cache[key] = (weight.detach(), compute())  # the reference ensures that no other tensor gets the same address
    return cache[key][1]
