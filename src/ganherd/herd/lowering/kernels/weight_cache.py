"""What is made out of weights is made once, as long as these stay the same: within a step, several passes share it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_Made = dict[tuple[Hashable, ...], tuple[Tensor, Tensor]]
_MADE: ContextVar[_Made | None] = ContextVar("made", default=None)


@contextmanager
def cache_weights() -> Iterator[None]:
    """Until it ends, `cached` remembers. A step is the longest that a captured graph allows: a replay must begin with nothing."""
    token = _MADE.set({})
    try:
        yield
    finally:
        _MADE.reset(token)


def cached(weight: Tensor, make: Callable[[], Tensor], *how: Hashable) -> Tensor:
    """`make()`, or what it answered before for the same memory, unchanged since (by its version), and the same `how`."""
    made = _MADE.get()
    if made is None:
        return make()
    key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight._version, *how)
    if key not in made:
        made[key] = (weight.detach(), make())  # held on to, so that nothing else can lie in its place
    return made[key][1]
