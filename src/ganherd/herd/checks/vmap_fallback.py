"""Collect PyTorch's warnings about operations that `vmap` runs member by member, instead of printing each of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_BEGINNING = "There is a performance drop because we have not yet implemented the batching rule for"
_WARNING = re.compile(rf"{_BEGINNING} aten::(\w+)")


def mute_warnings() -> None:
    """Suppress these warnings in this process; `slow_operations` still collects the names."""
    warnings.filterwarnings("ignore", message=_BEGINNING)


@contextmanager
def slow_operations() -> Iterator[set[str]]:
    """Collect the names of operations without a batching rule that run in this context; other warnings are passed on."""
    names: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield names
    for warning in caught:
        if match := _WARNING.search(str(warning.message)):
            names.add(match[1])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
