"""Cache tensors that are computed from weights: several forward passes of a step use the same weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_Cache = dict[tuple[Hashable, ...], tuple[Tensor, Tensor]]  # (weight, result) by identity of the weight and parameters
_CACHE: ContextVar[_Cache | None] = ContextVar("cache", default=None)


@contextmanager
def cache_weights(keep: bool = True) -> Iterator[None]:
    """Let `cached` keep results inside this context. In a captured graph it may last one step at most.

    The replay of a graph starts without any result, so the graph must contain the computation of each of them.

    Args:
        keep: False: keep nothing inside this context, because no other pass has the same weights.
    """
    token = _CACHE.set({} if keep else None)
    try:
        yield
    finally:
        _CACHE.reset(token)


def cached(weight: Tensor, compute: Callable[[], Tensor], *settings: Hashable) -> Tensor:
    """Return `compute()`, or its earlier result for the same settings and the same memory if that has not changed since."""
    cache = _CACHE.get()
    if cache is None:
        return compute()
    key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight._version, *settings)
    if key not in cache:
        cache[key] = (weight.detach(), compute())  # the reference ensures that no other tensor gets the same address
    return cache[key][1]
