"""Collect PyTorch's warnings about operations that `vmap` runs member by member, instead of printing each of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_BEGINNING = "There is a performance drop because we have not yet implemented the batching rule for"
_WARNING = re.compile(rf"{_BEGINNING} aten::(\w+)")


def mute_warnings() -> None:
    """Keep `vmap` from warning in this process; `slow_operations` still finds the names."""
    warnings.filterwarnings("ignore", message=_BEGINNING)


@contextmanager
def slow_operations() -> Iterator[set[str]]:
    """Collect the names of operations that have no rule for all members at once; other warnings pass."""
    names: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield names
    for one in caught:
        if found := _WARNING.search(str(one.message)):
            names.add(found[1])
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
